"""Merges in Python are the library's; the tables they are made of find what is there."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from tokenizer_vocabs import bpe_metadata

from gguflow.engine.gguf import GgufError, GgufFile
from gguflow.models.tokenizer import Tokenizer
from gguflow.models.tokenizer import bpe as bpe_module
from gguflow.models.tokenizer.packed_text import Hashes, PackedText, Table


def both(tokenizer: Tokenizer, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids of texts, merged here and by the library."""
    monkeypatch.setattr(bpe_module, "_FEW", 1 << 40)
    here = [tokenizer.encode(text) for text in texts]
    assert tokenizer._model._library is None  # type: ignore[union-attr]
    monkeypatch.setattr(bpe_module, "_FEW", -1)
    assert here == [tokenizer.encode(text) for text in texts]
    assert tokenizer._model._library is not None  # type: ignore[union-attr]


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
def test_random_merges_of_random_text(pre: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges in an order that no training would give, where ranks fall as well as rise."""
    draw = random.Random(5)
    pieces = list("abcd")
    merges = []
    while len(merges) < 60:
        left, right = draw.choice(pieces), draw.choice(pieces)
        if left + right not in pieces and len(left + right) < 9:
            merges.append(f"{left} {right}")
            pieces.append(left + right)
    metadata = bpe_metadata(merges, pre=pre)
    draw.shuffle(merges)
    metadata["tokenizer.ggml.merges"] = [*merges, merges[0]]
    texts = ["".join(draw.choices("abcd  é", k=draw.randrange(60))) for _ in range(200)]
    both(Tokenizer.from_metadata(metadata), ["", *texts], monkeypatch)


@pytest.mark.parametrize("name", ["llama-bpe", "gpt-2"])
def test_real_vocabularies(name: str, shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shared_data / f"ggml-vocab-{name}.gguf"
    cases = Path(f"{path}.inp").read_text("utf-8").split("\n__ggml_vocab_test__\n")
    both(Tokenizer.load(path), ["-" * 3000, *cases], monkeypatch)


def test_whole_words_need_no_merges() -> None:
    metadata = bpe_metadata(pre="llama-bpe")
    tokenizer = Tokenizer.from_metadata(metadata)
    known = [tokenizer.id_of(word) for word in ("hello", "Ġhello")]
    assert tokenizer.encode("hello hello") == known
    assert "_merges" not in vars(tokenizer._model)
    assert tokenizer.encode("hehe") == [tokenizer.id_of("he")] * 2
    assert "_merges" in vars(tokenizer._model)

    metadata["tokenizer.ggml.merges"] = ["h e", "nonsense"]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("hello hello") == known
    with pytest.raises(GgufError, match=r"merges\[1\]: found 'nonsense'"):
        tokenizer.encode("hehe")
    del metadata["tokenizer.ggml.merges"]
    with pytest.raises(GgufError, match="merges: found no such key"):
        Tokenizer.from_metadata(metadata)


def test_much_text_is_for_the_library() -> None:
    tokenizer = Tokenizer.from_metadata(bpe_metadata())
    few = bpe_module._FEW
    short = tokenizer.encode("hello " * 3)
    assert tokenizer._model._library is None  # type: ignore[union-attr]
    tokenizer.encode(" ".join(f"hell{i}" for i in range(few // 3)))
    assert tokenizer.encode("hello " * 3) == short
    assert tokenizer._model._library is not None  # type: ignore[union-attr]


def test_hashes_add_up() -> None:
    words = ["", "a", "b", "ab", "ba", "\0", "\0\0", "é", "x" * 300_000, "abab"]
    text = PackedText(words)
    assert [text.text(i) for i in range(len(text))] == words
    hashes = Hashes(text)
    (whole,) = hashes.of(text.starts, text.ends)
    assert len(set(whole.tolist())) == len(words)
    one, two = whole[[1, 3]], whole[[2, 3]]
    assert hashes.joined(one, two, np.array([1, 2])).tolist() == whole[[3, 9]].tolist()


def test_a_file_s_strings_hash_like_others(shared_data: Path) -> None:
    stored = GgufFile.open(shared_data / "ggml-vocab-gpt-2.gguf").metadata["tokenizer.ggml.merges"]
    a, b = PackedText(stored), PackedText(stored.tolist())
    assert np.array_equal(Hashes(a).of(a.starts, a.ends), Hashes(b).of(b.starts, b.ends))
    for text in (a, b):  # a length of 32 in front of a string is no space
        where, count = text.find(ord(" "))
        assert (count == 1).all() and (text.data[where] == 32).all()


def test_tables() -> None:
    draw = np.random.default_rng(1)
    keys = draw.integers(0, 1 << 63, 5000, np.uint64)
    keys[100:200] = keys[:100]  # the first one counts
    keys = np.concatenate([keys, np.arange(300, dtype=np.uint64) << np.uint64(56)])
    table = Table(keys)
    first = {int(k): i for i, k in reversed(list(enumerate(keys)))}
    assert table.find(keys).tolist() == [first[int(k)] for k in keys]
    assert [table.find_one(int(k)) for k in keys] == [first[int(k)] for k in keys]
    assert table.find(keys + np.uint64(1)).tolist() == [first.get(int(k) + 1, -1) for k in keys]
    assert Table(keys[:0]).find(keys[:3]).tolist() == [-1] * 3


def test_keys_that_meet_in_every_table() -> None:
    """Multiples of a power of two have few different upper bits in any product."""
    keys = np.arange(256, dtype=np.uint64) << np.uint64(56)
    table = Table(np.concatenate([keys, keys]))
    assert table.find(keys).tolist() == list(range(256))
    assert [table.find_one(int(k)) for k in keys] == list(range(256))
