"""`gguflow generate`: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from cli_helpers import start
from tiny_model import write_tiny

from gguflow.engine.load.bundled import bundled_folder

GREEDY = ("--temp", "0")
TIMINGS = re.compile(
    r"^ +load time = +[\d.]+ ms$\n"
    r"^prompt eval time = +[\d.]+ ms / +(\d+) tokens \( *[\d.]+ ms per token, +[\d.]+ tokens per second\)$\n"  # noqa: E501
    r"^ +eval time = +[\d.]+ ms / +(\d+) runs   \( *[\d.]+ ms per token, +[\d.]+ tokens per second\)$\n"  # noqa: E501
    r"^ +total time = +[\d.]+ ms / +(\d+) tokens$",
    re.M,
)


def test_text_on_stdout_and_the_rest_on_stderr(run, tiny_model: str) -> None:
    done = run("generate", "-m", tiny_model, "-p", "ABC", "-n", "8", *GREEDY, "--ignore-eos", "-v")
    assert done.returncode == 0
    assert done.stdout.startswith("ABC") and done.stdout.endswith("\n")
    assert len(done.stdout) > len("ABC\n")
    assert "host: weights" in done.stderr
    found = TIMINGS.search(done.stderr)
    assert found, done.stderr
    # BOS, the space before, three letters; the first of 8 tokens comes from the prompt's run.
    assert found.groups() == ("5", "7", "12")


def test_prompt_from_stdin_file_and_argument_agree(run, tiny_model: str, tmp_path: Path) -> None:
    rest = ("-m", tiny_model, "-n", "6", *GREEDY)
    by_argument = run("generate", "-p", "A\\nB", *rest).stdout
    (tmp_path / "prompt").write_text("A\nB\n")
    assert by_argument.startswith("A\nB")
    assert run("generate", "-p", "-", *rest, input="A\nB\n").stdout == by_argument
    assert run("generate", "-f", str(tmp_path / "prompt"), *rest).stdout == by_argument
    assert run("generate", "-f", "-", *rest, input="A\nB").stdout == by_argument


def test_escapes(call, tiny_model: str) -> None:
    rest = ("-m", tiny_model, "-n", "0", "--no-perf")
    assert call("generate", "-p", r"a\tb\\c\x41\q", *rest)[1] == "a\tb\\cA\\q\n"
    assert call("generate", "-p", r"a\tb", "--no-escape", *rest)[1] == "a\\tb\n"
    assert call("generate", "-p", "-starts with a dash", *rest)[1] == "-starts with a dash\n"


def test_no_display_prompt(call, tiny_model: str) -> None:
    args = ("generate", "-m", tiny_model, "-p", "ABC", "-n", "9", *GREEDY)
    whole = call(*args)[1]
    assert call(*args, "--no-display-prompt")[1] == whole.removeprefix("ABC")
    assert not TIMINGS.search(call(*args, "--no-perf")[2])


def test_verbose_prompt_lists_tokens_on_stderr(call, tiny_model: str) -> None:
    _, out, err = call("generate", "-m", tiny_model, "-p", "AB", "-n", "0", "--verbose-prompt")
    assert out == "AB\n"
    assert "prompt: 4 tokens" in err and "     1 -> '<s>'" in err and "-> 'B'" in err


def test_seed_decides(call, tiny_model: str) -> None:
    def text(*seed: str) -> str:
        return call("generate", "-m", tiny_model, "-p", "A", "-n", "24", "--temp", "2",
                    "--ignore-eos", *seed)[1]  # fmt: skip

    assert text("-s", "7") == text("--seed", "7")
    assert len({text("-s", str(s)) for s in range(4)}) == 4
    assert len({text() for _ in range(3)}) > 1


def test_threads_and_batches_change_nothing(call, run, tiny_model: str) -> None:
    args = ("generate", "-m", tiny_model, "-p", "The quick brown fox", "-n", "30", "-s", "3")
    texts = {
        call(*args, *flags)[1]
        for flags in ((), ("-t", "1"), ("-t", "2", "-tb", "1"), ("-b", "3"), ("-ub", "7"),
                      ("-b", "4", "-ub", "512"), ("-c", "60"))
    }  # fmt: skip
    texts.add(run(*args).stdout)  # a process of its own
    assert len(texts) == 1


@pytest.mark.parametrize("flags", [("--no-fuse",), ("-ctk", "f32", "-ctv", "bf16"),
                                   ("-ot", "ffn=numpy,output=cpu"), ("--no-warmup",),
                                   ("--equal-bits",), ("--equal-bits", "many")])  # fmt: skip
def test_other_ways_to_run(call, tiny_model: str, flags: tuple[str, ...]) -> None:
    code, out, _ = call("generate", "-m", tiny_model, "-p", "ABC", "-n", "4", *flags)
    assert code == 0 and out.startswith("ABC")


def test_full_context_ends_a_generation(call, tiny_model: str) -> None:
    code, out, err = call("generate", "-m", tiny_model, "-p", "A", "--ignore-eos", *GREEDY)
    assert code == 0
    assert "stopped because the context of 64 tokens is full" in err
    groups = TIMINGS.search(err).groups()
    assert groups == ("3", "61", "64")  # every row of the cache is used
    assert "is full" not in call("generate", "-m", tiny_model, "-p", "A", "-n", "5")[2]
    code, _, err = call("generate", "-m", tiny_model, "-p", "A", "-c", "80", "-n", "1")
    assert code == 0 and "context 80 is beyond the 64" in err


def test_model_that_ends_its_text(call, tmp_path: Path) -> None:
    """A model whose first choice is always EOS generates nothing, unless told to go on."""
    import numpy as np

    head = np.zeros((96, 64), np.float32)
    path = write_tiny(tmp_path / "m.gguf", weights={"output.weight": head},
                      keys={"tokenizer.ggml.eos_token_id": 0})  # fmt: skip
    args = ("generate", "-m", str(path), "-p", "AB", "-n", "5", *GREEDY)
    code, out, err = call(*args)
    assert (code, out) == (0, "AB\n")
    assert TIMINGS.search(err).group(2) == "0"
    assert TIMINGS.search(call(*args, "--ignore-eos")[2]).group(2) == "4"


@pytest.mark.parametrize("ending", ["jsonl", "json", "html"])
def test_profile(call, tiny_model: str, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"run.{ending}"
    code, out, err = call("generate", "-m", tiny_model, "-p", "AB", "-n", "3", "--ignore-eos",
                          "--profile", str(path))  # fmt: skip
    assert code == 0 and f"profile: {path}" in err and out.startswith("AB")
    text = path.read_text()
    if ending == "jsonl":
        rows = [json.loads(line) for line in text.splitlines()]
        assert [r["phase"] for r in rows if r["kind"] == "step"] == ["prefill", "decode", "decode"]
        assert {r["op"] for r in rows if r["kind"] == "op"} >= {"attention", "sample", "host"}
    elif ending == "json":
        assert json.loads(text)["traceEvents"]
    else:
        assert "<html" in text


def test_ctrl_c_keeps_what_was_produced(tiny_model: str) -> None:
    args = ("generate", "-m", tiny_model, "-p", "AB", "--ignore-eos", *GREEDY)
    p = start(*args, "-c", "200000")
    assert p.stdout and p.stderr
    first = p.stdout.read(20)
    p.send_signal(signal.SIGINT)
    # Not by communicate(), which does not see what the first read left in its buffer.
    text, err = first + p.stdout.read(), p.stderr.read()
    p.wait(timeout=60)
    assert p.returncode == 130
    assert text.startswith("AB") and text.endswith("\n")
    assert TIMINGS.search(err) and "Traceback" not in err
    n_runs = int(TIMINGS.search(err).group(2))
    whole = start(*args, "-c", "200000", "-n", str(n_runs + 1)).communicate(timeout=60)[0]
    assert text == whole


def test_closed_stdout_ends_quietly(tiny_model: str) -> None:
    p = start("generate", "-m", tiny_model, "-p", "AB", "--ignore-eos", "-c", "200000")
    assert p.stdout and p.stderr
    p.stdout.read(10)
    p.stdout.close()
    err = p.stderr.read()
    assert p.wait(timeout=60) == 0
    assert "Broken" not in err and "Traceback" not in err and "error" not in err


def test_streams_as_it_goes(tiny_model: str) -> None:
    """Text arrives while the model is still at it."""
    p = start("generate", "-m", tiny_model, "-p", "AB", "--ignore-eos", "-c", "200000")
    assert p.stdout
    assert p.stdout.read(12).startswith("AB") and p.poll() is None
    p.kill()
    p.communicate()


def test_output_that_a_terminal_cannot_show(run, tiny_model: str) -> None:
    done = run("generate", "-m", tiny_model, "-p", "-", "-n", "1", input="Größe",
               env={"PYTHONIOENCODING": "ascii"})  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("Gr??e")


def test_greedy_text_is_llama_cpps(run, shared_data: Path) -> None:
    golden = json.loads((shared_data / "stories260K.golden.json").read_text())["rows"]
    for row in golden:
        done = run("generate", "-m", str(shared_data / "stories260K.gguf"), "-p", row["prompt"],
                   "-n", str(len(row["greedy_ids"])), "--no-display-prompt", *GREEDY,
                   "--ignore-eos", "-t", "1")  # fmt: skip
        assert done.returncode == 0
        assert done.stdout.strip() == row["text"].strip()


def test_bundled_model_tells_a_story(call) -> None:
    if not list(bundled_folder().glob("*.gguf")):
        pytest.skip("this checkout has no bundled model")
    code, out, _ = call("generate", "-p", "Once upon a time", "-n", "20", "-s", "1", "-t", "1")
    assert code == 0 and out.startswith("Once upon a time")
    words = out.removeprefix("Once upon a time").split()
    assert len(words) >= 5 and sum(w.strip(",.!?;'\"").isalpha() for w in words) > len(words) / 2
