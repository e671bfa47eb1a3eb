"""Agreement with the published test cases and vocabularies kept beside the checkout."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from gguflow.models.tokenizer import Tokenizer

VOCABULARIES = ["ggml-vocab-llama-spm", "ggml-vocab-llama-bpe", "ggml-vocab-gpt-2"]


@cache
def load(path: Path) -> Tokenizer:
    return Tokenizer.load(path)


def read_cases(directory: Path, name: str) -> list[tuple[str, list[int]]]:
    # newline="": some cases hold carriage returns.
    with open(directory / f"{name}.gguf.inp", encoding="utf-8", newline="") as file:
        texts = file.read().split("\n__ggml_vocab_test__\n")
    lines = (directory / f"{name}.gguf.out").read_text().split("\n")
    return [(text, [int(word) for word in line.split()]) for text, line in zip(texts, lines)]  # noqa: B905


@pytest.mark.parametrize("name", VOCABULARIES)
def test_published_cases(shared_data: Path, name: str) -> None:
    tokenizer = load(shared_data / f"{name}.gguf")
    cases = read_cases(shared_data, name)
    assert len(cases) > 40
    for text, ids in cases:
        assert tokenizer.encode(text, add_special=False) == ids, text


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("add_special", [False, True])
def test_round_trip(shared_data: Path, name: str, add_special: bool) -> None:
    tokenizer = load(shared_data / f"{name}.gguf")
    for text, _ in read_cases(shared_data, name):
        ids = tokenizer.encode(text, add_special=add_special)
        assert tokenizer.decode(ids) == text
        stream = tokenizer.stream(strip_space=True)
        pieces = [*map(stream.push, ids), stream.flush()]
        assert "".join(pieces) == text
        assert "\ufffd" not in "".join(pieces)


def test_golden_prompts(shared_data: Path) -> None:
    tokenizer = load(shared_data / "stories260K.gguf")
    golden = json.loads((shared_data / "stories260K.golden.json").read_text())
    assert len(golden["rows"]) == 3
    for row in golden["rows"]:
        assert tokenizer.encode(row["prompt"]) == row["prompt_ids"]
        assert tokenizer.decode(row["greedy_ids"], strip_space=False) == row["text"]


@pytest.mark.parametrize(
    ("name", "n_vocab", "bos", "eos", "eot", "add_bos", "eog"),
    [
        ("ggml-vocab-llama-spm", 32000, 1, 2, None, True, {2}),
        ("ggml-vocab-llama-bpe", 128256, 128000, 128001, 128009, True, {128001, 128009}),
        ("ggml-vocab-gpt-2", 50257, 50256, 50256, 50256, False, {50256}),
    ],
)
def test_special_ids(
    shared_data: Path,
    name: str,
    n_vocab: int,
    bos: int,
    eos: int,
    eot: int | None,
    add_bos: bool,
    eog: set[int],
) -> None:
    tokenizer = load(shared_data / f"{name}.gguf")
    assert (tokenizer.n_vocab, tokenizer.bos, tokenizer.eos) == (n_vocab, bos, eos)
    assert (tokenizer.eot, tokenizer.eog_ids) == (eot, eog)
    assert (tokenizer.add_bos, tokenizer.add_eos) == (add_bos, False)


def test_llama3_special_tokens(shared_data: Path) -> None:
    tokenizer = load(shared_data / "ggml-vocab-llama-bpe.gguf")
    text = "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    parsed = [128006, 882, 128007, 271, 13347, 128009]
    assert tokenizer.encode(text, parse_special=True) == [128000, *parsed]
    as_text = tokenizer.encode(text, add_special=False)
    assert max(as_text) < 128000  # where the special tokens begin
    assert tokenizer.decode(as_text) == text
    assert tokenizer.decode(parsed) == "user\n\nHi"
    assert tokenizer.decode(parsed, skip_special=False) == text
