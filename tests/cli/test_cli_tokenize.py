"""`gguflow tokenize`: text to ids and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import one_line_error


def test_ids_and_pieces(call, tiny_model: str) -> None:
    code, out, err = call("tokenize", "-m", tiny_model, "AB")
    assert (code, err) == (0, "")
    assert out.splitlines() == ["     1 -> '<s>'", "     4 -> '▁'", "    37 -> 'A'",
                                "    38 -> 'B'"]  # fmt: skip
    assert call("tokenize", "-m", tiny_model, "-p", "AB", "--ids")[1] == "[1, 4, 37, 38]\n"
    assert call("tokenize", "-m", tiny_model, "AB", "--ids", "--no-bos")[1] == "[4, 37, 38]\n"
    assert (
        "Total number of tokens: 4" in call("tokenize", "-m", tiny_model, "AB", "--show-count")[1]
    )


def test_special_tokens_only_on_request(call, tiny_model: str) -> None:
    args = ("tokenize", "-m", tiny_model, "--ids", "--no-bos", "</s>")
    assert json.loads(call(*args, "--parse-special")[1]) == [2]
    assert len(json.loads(call(*args)[1])) > 1


def test_stdin_and_file(run, tiny_model: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("AB")
    for args, text in ((("--stdin",), "AB"), (("-",), "AB"), (("-p", "-"), "AB"),
                       (("-f", str(tmp_path / "t")), "")):  # fmt: skip
        done = run("tokenize", "-m", tiny_model, "--ids", *args, input=text)
        assert (done.returncode, done.stdout) == (0, "[1, 4, 37, 38]\n"), args


@pytest.mark.parametrize("ids", ["4 37 38", "4,37,38", "[4, 37, 38]"])
def test_decode(call, tiny_model: str, ids: str) -> None:
    assert call("tokenize", "-m", tiny_model, "--decode", ids) == (0, "AB\n", "")


def test_bad_arguments(call, tiny_model: str) -> None:
    for args, words in (
        ((), "give one of: a text"),
        (("A", "-p", "B"), "give one of: a text"),
        (("--decode", "1 x"), "--decode: 'x' is no token id"),
        (("--decode", "-3"), "--decode: '-3' is no token id"),
        (("--decode", "96"), "--decode: 96 is no token of 96"),
    ):
        code, out, err = call("tokenize", "-m", tiny_model, *args)
        assert (code, out) == (2, "") and words in one_line_error(err)
    assert call("tokenize", "-m", "/nowhere", "A")[0] == 3


def test_reference_cases(run, shared_data: Path) -> None:
    """The cases llama.cpp tests its own tokenizers with, through the command."""
    name = shared_data / "ggml-vocab-llama-spm.gguf"
    texts = Path(f"{name}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    ids = Path(f"{name}.out").read_text().splitlines()
    for i in (3, 20, 40):
        done = run("tokenize", "-m", str(name), "--ids", "--no-bos", "--stdin", input=texts[i])
        assert json.loads(done.stdout) == [int(x) for x in ids[i].split()]
