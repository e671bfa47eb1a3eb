"""`gguflow chat`: turns, commands, and the KV cache kept between turns."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path

import pytest

from gguflow.cli.chat import Conversation
from gguflow.engine.model import Model
from gguflow.engine.sampling import GREEDY
from gguflow.models.chat import ChatTemplate

ARGS = ("--temp", "0", "-n", "6", "--ignore-eos", "-c", "2000")


def test_piped_turns(run, tiny_model: str) -> None:
    done = run("chat", "-m", tiny_model, *ARGS, input="A\n\nB\n/reset\nA\n/exit\nC\n")
    assert done.returncode == 0
    first, second, third = done.stdout.split("\n")[:-1]
    assert first == third != second  # forgotten, so the same again; not so in between
    assert "forgotten" in done.stderr and "prompt eval time" in done.stderr
    assert ">" not in done.stderr.split("prompt eval")[0].splitlines()[-1]


def test_end_of_input_ends(run, tiny_model: str) -> None:
    done = run("chat", "-m", tiny_model, *ARGS, input="")
    assert (done.returncode, done.stdout) == (0, "")


def test_first_message_and_single_turn(run, tiny_model: str) -> None:
    alone = run("chat", "-m", tiny_model, *ARGS, "-p", "A", "--single-turn", input="B\n")
    piped = run("chat", "-m", tiny_model, *ARGS, input="A\n")
    assert alone.returncode == 0 and alone.stdout == piped.stdout


def test_conversation_longer_than_the_context(run, tiny_model: str) -> None:
    done = run("chat", "-m", tiny_model, "--temp", "0", "-c", "40", "--ignore-eos", "--no-perf",
               input="A\nB\n")  # fmt: skip
    assert done.returncode == 4
    assert len(done.stdout.splitlines()) == 1  # the first answer filled the context
    assert "the context of 40 tokens is full" in done.stderr
    assert re.search(r"gguflow: error: the prompt has \d+ tokens", done.stderr)


def test_system_message_and_templates(run, tiny_model: str, tmp_path: Path) -> None:
    def answer(*flags: str) -> str:
        done = run("chat", "-m", tiny_model, *ARGS, *flags, input="A\n")
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}")
    as_file = answer("--chat-template", str(tmp_path / "t.jinja"))
    assert as_file == answer("--chat-template", "{{ messages[0].content }}")
    assert as_file != answer("--chat-template", "plain") == answer()
    assert answer("-sys", "Be brief") != answer()


@pytest.mark.parametrize(("choice", "code", "words"), [
    ("nonsense", 2, "--chat-template: unknown chat template 'nonsense'"),
    ("{{ unclosed", 2, "--chat-template: chat template, line 1"),
])  # fmt: skip
def test_bad_templates(call, tiny_model: str, choice: str, code: int, words: str) -> None:
    found, out, err = call("chat", "-m", tiny_model, "--chat-template", choice)
    assert (found, out) == (code, "") and words in err


def conversation(model: Model) -> Conversation:
    args = Namespace(system_prompt="Hi", no_escape=False, n_predict=8, ignore_eos=True)
    template = ChatTemplate.for_model(model.source.metadata, model.tokenizer)
    return Conversation(model, template, None, args, GREEDY)


def test_cache_is_kept_between_turns(tiny_model: str, capsys) -> None:
    """A turn computes what is new, and answers as if it had computed everything."""
    model = Model.load(tiny_model, n_ctx=500)
    talk = conversation(model)
    prompts = []
    for text in ("one", "two", "three"):
        assert talk.answer(text)
        messages = talk.messages[:-1]
        ids = talk.template.encode(model.tokenizer, messages)
        known = len(prompts[-1]) if prompts else 0
        assert ids[:known] == (prompts[-1] if prompts else [])
        assert talk.session.timings.n_prompt <= len(ids) - known
        prompts.append(ids)
        fresh = list(model.new_session().generate(ids, 8, GREEDY))
        stream = model.tokenizer.stream()
        assert talk.messages[-1]["content"] == "".join(map(stream.push, fresh)) + stream.flush()
    assert talk.session.timings.n_prompt < len(prompts[-1]) // 2
    assert talk.total.n_generated == 24
    talk.reset()
    assert talk.messages == [{"role": "system", "content": "Hi"}]
    capsys.readouterr()


def test_interrupted_answer_stays_in_the_conversation(tiny_model: str, capsys) -> None:
    model = Model.load(tiny_model, n_ctx=500)
    talk = conversation(model)
    whole = list(talk.session.generate([1, 5, 6], 8, GREEDY))
    talk.session.rewind(0)

    def three_then_interrupted(ids, *rest):
        yield from whole[:3]
        raise KeyboardInterrupt

    talk.session.generate = three_then_interrupted  # type: ignore[method-assign]
    assert talk.answer("one") is False
    stream = model.tokenizer.stream()
    shown = "".join(map(stream.push, whole[:3])) + stream.flush()
    assert talk.messages[-1] == {"role": "assistant", "content": shown}
    assert capsys.readouterr().out == shown + "\n"
