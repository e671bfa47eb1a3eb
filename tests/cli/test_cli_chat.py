"""`gguflow chat`: turns, commands, and the KV cache kept between turns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gguflow.cli.errors import UsageError
from gguflow.cli.talk.conversation import Conversation, Part, TalkOptions
from gguflow.cli.talk.thinking import ThoughtSplitter
from gguflow.engine.model import Model
from gguflow.engine.prompt import ContextError
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


def test_options_that_mean_the_other_command(run, tiny_model: str) -> None:
    flags = ("-m", tiny_model, *ARGS, "-p", "A", "--no-perf")
    talk = run("chat", *flags, "-st")
    for flag in ("-st", "--conversation"):
        made = run("generate", *flags, flag, "-st")
        assert made.returncode == 0 and made.stdout == talk.stdout
        assert f"gguflow: {flag}: as `gguflow chat`" in made.stderr
    text = run("generate", *flags)
    made = run("chat", *flags, "-no-cnv", "-q")
    assert made.stdout == text.stdout and "as `gguflow generate`" not in made.stderr


def test_what_is_said_first_from_files(run, tiny_model: str, tmp_path: Path) -> None:
    for name, text in (("system", "Be brief\n"), ("first", "A\n")):
        (tmp_path / name).write_text(text)
    flags = ("chat", "-m", tiny_model, *ARGS, "-st", "--no-perf")
    typed = run(*flags, "-sys", "Be brief", "-p", "A")
    files = run(*flags, "-sysf", str(tmp_path / "system"), "-f", str(tmp_path / "first"))
    assert files.returncode == 0 and files.stdout == typed.stdout, files.stderr
    assert run(*flags, "-p", "A").stdout != typed.stdout
    none = run(*flags, "-sysf", str(tmp_path / "none"))
    assert none.returncode == 2 and "-sysf" in none.stderr and "No such file" in none.stderr


def test_whether_the_template_asks_for_thoughts(run, tiny_model: str) -> None:
    template = "{{ 'on' if enable_thinking else 'off' if enable_thinking is defined else 'auto' }}"

    def answer(*flags: str) -> str:
        return str(run("chat", "-m", tiny_model, *ARGS, "-p", "A", "-st", *flags).stdout)

    for choice in ("on", "off", "auto"):
        expected = answer("--chat-template", f"{choice}{{{{ '' }}}}")
        assert answer("--chat-template", template, "-rea", choice) == expected


def test_conversation_longer_than_the_context(run, tiny_model: str) -> None:
    flags = ("-m", tiny_model, "--temp", "0", "-c", "40", "--ignore-eos", "--no-perf")
    done = run("chat", *flags, "--no-context-shift", input="A\nB\n")
    assert done.returncode == 4
    assert len(done.stdout.splitlines()) == 1  # the first answer filled the context
    assert "the context of 40 tokens is full" in done.stderr
    assert re.search(r"gguflow: error: the prompt has \d+ tokens", done.stderr)


def test_a_conversation_that_rolls(run, tiny_model: str) -> None:
    flags = ("-m", tiny_model, "--temp", "0", "-c", "64", "--ignore-eos", "--no-perf", "-n", "20")
    done = run("chat", *flags, input="A\nB\nC\nD\n")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 4
    assert "the context is full: its oldest 2 messages were left out" in done.stderr


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


@pytest.mark.parametrize("name", ["messages", "tokenizer", "bos_token"])
def test_what_a_template_has_of_its_own(call, tiny_model: str, name: str) -> None:
    code, out, err = call("chat", "-m", tiny_model, "--chat-template-kwargs", f'{{"{name}": 1}}')
    assert (code, out) == (2, "") and f"--chat-template-kwargs: variable '{name}'" in err


def conversation(model: Model, **options: Any) -> Conversation:
    template = ChatTemplate.for_model(model.source.metadata, model.tokenizer)
    given = {"settings": GREEDY, "n_predict": 8, "ignore_eos": True} | options
    return Conversation(model, template, TalkOptions(**given), model.new_session(), "Hi")


def reply(talk: Conversation, text: str) -> list[Part]:
    talk.say(text)
    parts = list(talk.reply())
    talk.commit()
    return parts


def test_cache_is_kept_between_turns(tiny_model: str) -> None:
    """A turn computes what is new, and answers as if it had computed everything."""
    model = Model.load(tiny_model, n_ctx=500)
    talk = conversation(model)
    prompts: list[list[int]] = []
    for text in ("one", "two", "three"):
        parts = reply(talk, text)
        messages = [{"role": "system", "content": "Hi"}, *talk.messages[:-1]]
        ids = talk.template.encode(model.tokenizer, messages)
        known = len(prompts[-1]) if prompts else 0
        assert ids[:known] == (prompts[-1] if prompts else [])
        assert talk.session.timings.n_prompt <= len(ids) - known
        prompts.append(ids)
        fresh = list(model.new_session().generate(ids, 8, GREEDY))
        stream = model.tokenizer.stream()
        content = talk.messages[-1]["content"]
        assert content == "".join(map(stream.push, fresh)) + stream.flush()
        assert content == "".join(p.text for p in parts)
    assert talk.session.timings.n_prompt < len(prompts[-1]) // 2
    assert talk.total.n_generated == 24
    talk.clear()
    assert talk.messages == []


def test_what_was_said_before_an_interrupt_stays(tiny_model: str) -> None:
    talk = conversation(Model.load(tiny_model, n_ctx=500))
    talk.say("one")
    parts = talk.reply()
    shown = "".join(next(parts).text for _ in range(3))
    with pytest.raises(KeyboardInterrupt):
        parts.throw(KeyboardInterrupt)
    talk.commit()
    assert talk.messages[-1] == {"role": "assistant", "content": shown}
    assert talk.total.n_generated >= 3


def test_the_oldest_messages_are_left_out_when_the_context_is_full(tiny_model: str) -> None:
    model = Model.load(tiny_model, n_ctx=150)
    talk = conversation(model, n_predict=20)
    notes = []
    for i in range(12):
        parts = reply(talk, f"message {i:02d}")
        notes += [p.text for p in parts if p.kind == "note"]
        assert sum(p.kind == "text" for p in parts) > 0 and talk.n_tokens() <= 150 + 30
        ids, _ = talk.prompt()
        assert model.tokenizer.decode(ids).lstrip().startswith("Hi")  # the system message stays
    assert len(talk.messages) == 24  # of which the last ones are sent
    assert len(notes) >= 3 and all("oldest" in n and "left out" in n for n in notes)
    sent = model.tokenizer.decode(talk.prompt()[0])
    assert "message 11" in sent and "message 00" not in sent


def test_what_is_kept_is_not_left_out(tiny_model: str) -> None:
    model = Model.load(tiny_model, n_ctx=150)
    talk = conversation(model, n_predict=20, keep=20)
    for i in range(9):
        reply(talk, f"message {i:02d}")
    sent = model.tokenizer.decode(talk.prompt()[0])
    assert "message 00" in sent and "message 02" not in sent and "message 08" in sent
    everything = conversation(model, n_predict=20, keep=-1)
    with pytest.raises(ContextError):
        for i in range(9):
            reply(everything, f"message {i:02d}")


def test_an_answer_goes_on_where_the_context_ends(tiny_model: str) -> None:
    model = Model.load(tiny_model, n_ctx=150)
    talk = conversation(model, n_predict=8)
    for i in range(3):
        reply(talk, f"message {i:02d}")
    talk.options.n_predict = 100
    parts = reply(talk, "a long one")
    assert len([p for p in parts if p.kind == "text"]) >= 95
    assert [p for p in parts if p.kind == "note"]
    talk.options.n_predict = -1
    (end,) = [p.text for p in reply(talk, "no end") if p.kind == "note"][-1:]
    assert end == "the context of 150 tokens is full"


# -- thoughts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "text", "expected"),
    [
        (None, "Hello <think>", [(False, "Hello <think>")]),
        (None, "<think>\nhm\n</think>\n\nYes", [(True, "hm\n"), (False, "Yes")]),
        (None, "\n<think>a</thinkb</think>c", [(False, "\n"), (True, "a</thinkb"), (False, "c")]),
        ("<think>", "\nhm</think>Yes <think>", [(True, "hm"), (False, "Yes <think>")]),
        ("<think>", "never ends</thi", [(True, "never ends</thi")]),
        (None, "[THINK]x[/THINK]y", [(True, "x"), (False, "y")]),
        (None, "<thin", [(False, "<thin")]),
        (None, "", []),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_thoughts_and_answers_apart(
    mark: str | None, text: str, expected: list[tuple[bool, str]], size: int
) -> None:
    splitter = ThoughtSplitter(mark)
    parts: list[tuple[bool, str]] = []
    for i in range(0, len(text), size):
        parts += splitter.push(text[i : i + size])
    parts += splitter.flush()
    joined: list[tuple[bool, str]] = []
    for kind, part in parts:
        if joined and joined[-1][0] == kind:
            part = joined.pop()[1] + part
        joined.append((kind, part))
    assert joined == expected


THINKING = "{% for m in messages %}{{ m.content }}\n{% endfor %}{{ '<think>' if enable_thinking "
THINKING += "is not defined or enable_thinking }}"


def test_a_budget_of_thoughts(tiny_model: str) -> None:
    model = Model.load(tiny_model, n_ctx=500)
    talk = conversation(model, n_predict=30, budget=6)
    talk.template = ChatTemplate(THINKING)
    parts = reply(talk, "one")
    kinds = [p.kind for p in parts]
    assert 0 < kinds.count("thought") <= 6 and kinds.count("text") > 5
    assert "think" not in "".join(p.text for p in parts)
    message = talk.messages[-1]
    assert message["reasoning_content"] and message["content"]
    talk.options.budget_message = "enough"
    parts = reply(talk, "more")
    assert [p.text for p in parts if p.kind == "thought"][-1] == "enough"
    talk.options.budget_message = ""
    talk.options.budget = 0
    assert {p.kind for p in reply(talk, "two")} == {"text"}
    talk.options.budget, talk.options.thinks = -1, True
    assert {p.kind for p in reply(talk, "three")} == {"thought"}


def test_conversations_on_disk(tiny_model: str, tmp_path: Path) -> None:
    talk = conversation(Model.load(tiny_model, n_ctx=500))
    reply(talk, "one")
    talk.save(str(tmp_path / "c.json"))
    again = conversation(talk.model)
    again.system = ""
    again.load(str(tmp_path / "c.json"))
    assert (again.messages, again.system) == (talk.messages, "Hi")
    for bad in ("", "[]", '{"messages": [{"role": 3}]}', '{"messages": 3, "system": ""}'):
        (tmp_path / "bad.json").write_text(bad)
        with pytest.raises(UsageError, match=r"bad\.json: no conversation"):
            again.load(str(tmp_path / "bad.json"))
    assert again.messages == talk.messages
