"""What users get wrong: one clear line on stderr, nothing on stdout, the documented exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import ENV, one_line_error, write_bytes
from tiny_model import write_tiny

from gguflow.cli import load
from gguflow.engine.files import read_file
from gguflow.engine.load import WeightStore, bundled


@pytest.fixture(autouse=True)
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be refused is refused before anything is loaded."""

    def load(*args: object) -> None:
        raise AssertionError("the weights were loaded")

    monkeypatch.setattr(WeightStore, "load", load)


BAD_FLAGS = {
    "-t 0": "-t/--threads: 0",
    "-t two": "-t/--threads: two",
    "-t 100000": "-t/--threads: 100000",
    "-tb 0": "-tb/--threads-batch: 0",
    "-n -5": "-n/--n-predict/--predict: -5",
    "-n 1.5": "-n/--n-predict/--predict: 1.5",
    "-c -1": "-c/--ctx-size: -1",
    "-c 99999999999999": "-c/--ctx-size: 99999999999999",
    "-b 0": "-b/--batch-size: 0",
    "-ub 0": "-ub/--ubatch-size: 0",
    "-s -2": "-s/--seed: -2",
    "--temp nan": "--temp/--temperature: nan",
    "--temp inf": "--temp/--temperature: inf",
    "--temp warm": "--temp/--temperature: warm",
    "--top-k -2": "--top-k: -2",
    "--top-p 0": "--top-p 0.0",
    "--top-p 1.5": "--top-p 1.5",
    "--min-p -0.1": "--min-p -0.1",
    "--repeat-penalty 0": "--repeat-penalty 0.0",
    "--repeat-last-n -2": "--repeat-last-n: -2",
    "-ctk q3_x": "-ctk/--cache-type-k: q3_x: expected one of f32, f16, bf16, q8_0",
    "-ctv q3_x": "-ctv/--cache-type-v: q3_x",
    "-ctk q8_0": "--cache-type-k q8_0: this model's heads have 16 values",
    "--compact-weights on": "--compact-weights: no GPU has weights that are read",
    "-ot attn": "-ot/--override-tensor: attn: expected PATTERN=BACKEND",
    "-ot attn=gpu7": "-ot attn=gpu7: no such backend; have cpu",
    "-ot (=cpu": "-ot (=cpu: bad pattern",
    "-f /nowhere/prompt": "-f/--file /nowhere/prompt: No such file",
    "-f /": "-f/--file /: Is a directory",
    "--profile out.txt": "out.txt: the ending must be .jsonl",
    "--profile /nowhere/out.html": "no directory /nowhere",
    "--bogus": "unknown option --bogus",
    "word": "unrecognized arguments: word",
    "-n": "-n/--n-predict/--predict: expected one argument",
}  # fmt: skip


@pytest.mark.parametrize("flags", BAD_FLAGS)
def test_impossible_flags(call, tiny_model: str, flags: str) -> None:
    code, out, err = call("generate", "-m", tiny_model, *flags.split())
    assert (code, out) == (2, "")
    assert BAD_FLAGS[flags] in one_line_error(err)


def test_two_prompts(call, tiny_model: str) -> None:
    code, out, err = call("generate", "-m", tiny_model, "-p", "A", "-f", "B")
    assert (code, out) == (2, "") and "not allowed with argument -p/--prompt" in err


def test_prompt_file_that_is_no_text(call, tiny_model: str, tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "prompt", b"abc\xff")
    code, out, err = call("generate", "-m", tiny_model, "-f", path)
    assert (code, out) == (2, "")
    assert "not UTF-8 text (byte 3)" in one_line_error(err)


def bad_files(folder: Path, model: str) -> dict[str, tuple[str, str]]:
    """kind -> (path, what the message must hold)."""
    whole = Path(model).read_bytes()
    return {
        "missing": (str(folder / "no.gguf"), "no such file"),
        "directory": (str(folder), "a directory"),
        "empty": (write_bytes(folder / "empty.gguf", b""), "an empty file"),
        "text": (write_bytes(folder / "text.gguf", b"Once upon a time\n"), "magic"),
        "truncated data": (write_bytes(folder / "cut.gguf", whole[: len(whole) // 2]), "truncated"),
        "truncated header": (write_bytes(folder / "head.gguf", whole[:200]), "byte "),
        "unknown architecture": (
            str(write_tiny(folder / "arch.gguf", keys={"general.architecture": "warp"})),
            "'warp' is not supported; have ",
        ),
        "bad hyperparameter": (
            str(write_tiny(folder / "hp.gguf", keys={".attention.head_count": 0})),
            "llama.attention.head_count",
        ),
        "no vocabulary": (
            str(write_tiny(folder / "vocab.gguf", keys={"tokenizer.ggml.model": "rwkv"})),
            "tokenizer.ggml.model",
        ),
    }  # fmt: skip


KINDS = ("missing", "directory", "empty", "text", "truncated data", "truncated header",
         "unknown architecture", "bad hyperparameter", "no vocabulary")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_bad_files(call, tiny_model: str, tmp_path: Path, kind: str) -> None:
    path, expected = bad_files(tmp_path, tiny_model)[kind]
    code, out, err = call("generate", "-m", path, "-p", "A")
    assert (code, out) == (3, "")
    message = one_line_error(err)
    assert expected in message
    assert path in message or kind == "no vocabulary"


@pytest.mark.parametrize("command", ["chat", "bench", "inspect", "profile"])
def test_every_command_reports_a_missing_file(call, command: str) -> None:
    code, out, err = call(command, "-m", "/nowhere/model.gguf")
    assert (code, out) == (3, "") and "/nowhere/model.gguf" in one_line_error(err)


def test_prompt_longer_than_the_context(call, tiny_model: str) -> None:
    code, out, err = call("generate", "-m", tiny_model, "-p", "A" * 100)
    assert (code, out) == (4, "")
    assert "the prompt has 102 tokens, the context 64" in one_line_error(err)
    assert call("generate", "-m", tiny_model, "-p", "AAA", "-c", "4")[0] == 4


def test_prompt_without_tokens(call, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", keys={"tokenizer.ggml.add_bos_token": False})
    code, out, err = call("generate", "-m", str(path), "-p", "")
    assert (code, out) == (2, "") and "the prompt has no tokens" in one_line_error(err)


def test_no_bundled_model(call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bundled, "bundled_folder", lambda: tmp_path)
    for command in (["generate"], ["tokenize", "A"], ["inspect"], ["bench"], ["chat"]):
        code, out, err = call(*command)
        assert (code, out) == (2, ""), command
        assert "-m/--model is needed" in one_line_error(err)


def test_bundled_model_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "x.gguf")
    monkeypatch.setattr(bundled, "bundled_folder", lambda: tmp_path)
    assert load.bundled_model() == model


BAD_SHAPES = {
    "warp-9b:Q4_0": "unknown shape 'warp-9b'; have smollm2-135m",
    "tinyllama-1.1b:Q9": "unknown quantization 'Q9'; have F32",
}


@pytest.mark.parametrize("shape", BAD_SHAPES)
@pytest.mark.parametrize("command", ["bench", "profile", "inspect"])
def test_bad_shapes(call, command: str, shape: str) -> None:
    code, out, err = call(command, "--random", shape)
    assert (code, out) == (2, "")
    assert one_line_error(err).startswith(f"--random {shape}: {BAD_SHAPES[shape]}")


BAD_BENCH = {
    "-r 0": "-r/--repetitions: 0",
    "-p 1,x": "-p/--n-prompt: x",
    "-p 8-4": "-p/--n-prompt: 8-4",
    "-p 1-8*1": "-p/--n-prompt: 1-8*1",
    "-n -1": "-n/--n-gen: -1",
    "-pg 8": "-pg: 8: expected two numbers",
    "-t 1,0": "-t/--threads: 0",
    "-o xml": "-o/--output: invalid choice: 'xml'",
    "-ctk f16,f8": "-ctk/--cache-type-k: f8",
    "-p 0 -n 0": "nothing to run",
}


@pytest.mark.parametrize("flags", BAD_BENCH)
def test_bad_bench_flags(call, tiny_model: str, flags: str) -> None:
    code, out, err = call("bench", "-m", tiny_model, *flags.split())
    assert (code, out) == (2, "") and BAD_BENCH[flags] in one_line_error(err)


def test_failing_command_in_a_process(run, tiny_model: str) -> None:
    """The exit code reaches the shell."""
    for args, code in (
        (("generate", "-m", tiny_model, "-t", "0"), 2),
        (("generate", "-m", "/nowhere"), 3),
        (("generate", "-m", tiny_model, "-p", "A" * 100), 4),
    ):
        done = run(*args)
        assert (done.returncode, done.stdout) == (code, "")
        one_line_error(done.stderr)
    done = run("generate", "-m", tiny_model, env={"GGUFLOW_CPU_ISA": "mmx"})
    assert done.returncode == 2 and "'mmx' is not available" in one_line_error(done.stderr)
    done = run("generate", "-m", tiny_model, "-p", "-", input=b"A\xff")
    assert done.returncode == 2 and "standard input: not UTF-8" in one_line_error(done.stderr)


@pytest.mark.parametrize(
    "closing, code, out",
    [("<&-", 0, True), (">&-", 0, False), ("2>&-", 0, True), ("2>/dev/full", 4, False)],
)
def test_closed_and_full_streams(tiny_model: str, closing: str, code: int, out: bool) -> None:
    """Nothing that belongs on stderr lands on stdout, and no stream is missed."""
    command = [sys.executable, "-m", "gguflow", "generate", "-m", tiny_model, "-n", "2", "-p", "-"]
    done = subprocess.run(["sh", "-c", f'"$@" {closing}', "sh", *command],
                          stdin=subprocess.DEVNULL, capture_output=True, env=ENV)  # fmt: skip
    assert done.returncode == code, done.stderr
    assert bool(done.stdout) == out and b"host:" not in done.stdout and b"bug" not in done.stderr


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
@pytest.mark.parametrize(
    "words",
    ["generate -n 1 -f /dev/zero", "tokenize -f /dev/zero", "perplexity -f /dev/zero",
     "imatrix -f /dev/zero -o x", "generate -n 1 -p A --grammar-file /dev/zero"],
)  # fmt: skip
def test_files_that_never_end(call, tmp_path: Path, words: str) -> None:
    command, *rest = words.split()
    code, out, err = call(command, "-m", str(write_tiny(tmp_path / "m.gguf")), *rest)
    assert (code, out) == (2, ""), err
    assert "/dev/zero" in one_line_error(err) and " MiB" in err


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
def test_a_file_that_never_ends_is_no_file() -> None:
    with pytest.raises(OSError, match="more than 1 MiB"):
        read_file("/dev/zero", 1 << 20)
