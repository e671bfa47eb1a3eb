"""Guesses by n-grams, and the file that keeps those of earlier texts."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.model import Model
from gguflow.engine.serving.runner import Sampling
from gguflow.engine.serving.speculation import Line, SpeculationError
from gguflow.engine.serving.speculation_lookup import MAGIC, Lookup, NGramCache, NGrams

NOTHING = Sampling(np.zeros((1, 8), np.float32), np.zeros((1, 2), np.int64), np.zeros((1, 1)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.load(write_tiny(tmp_path_factory.mktemp("m") / "m.gguf"), n_threads=1)


def guess(lookup: Lookup, tokens: list[int], n: int, key: int = 0) -> list[int]:
    return lookup.draft([Line(key, 0, tokens, 99)], [n], NOTHING)[0]


def test_what_followed_before_is_guessed() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3]
    assert guess(Lookup(), text, 4) == [4, 5, 6, 7]
    assert guess(Lookup(), text, 2) == [4, 5]
    assert guess(Lookup(), [1, 2, 3, 4], 4) == []
    assert guess(Lookup(), [1], 4) == []


def test_the_longest_n_gram_decides_and_then_the_latest() -> None:
    assert guess(Lookup(), [1, 2, 3, 50, 9, 2, 3, 60, 1, 2, 3], 1) == [50]
    assert guess(Lookup(), [2, 3, 50, 9, 2, 3, 60, 8, 2, 3], 1) == [60]


def test_a_text_that_repeats_itself_goes_on_to() -> None:
    assert guess(Lookup(), [5, 6, 7, 5, 6, 7, 5], 8) == [6, 7, 5, 6, 7, 5, 6, 7]


def test_a_growing_text_is_read_once() -> None:
    grams, text = NGrams(), [3, 4, 5]
    rng = np.random.default_rng(0)
    lookup = Lookup()
    for _ in range(200):
        text.append(int(rng.integers(1, 6)))
        grams.extend(text)
        fresh = NGrams()
        fresh.extend(text)
        assert grams.find(text) == fresh.find(text)
        assert guess(lookup, text, 3) == guess(Lookup(), text, 3)
    lookup.forget({0})
    assert guess(lookup, [1, 2], 3) == []


def test_the_cache_knows_what_most_often_followed(model: Model, tmp_path: Path) -> None:
    cache = NGramCache(model)
    first = Lookup(cache)
    text = [9]
    guess(first, text, 4)  # where the line was seen first: what follows was written
    text += [1, 2, 7, 1, 2, 8, 1, 2, 7, 1, 2, 7]
    first.forget({0})
    assert cache.next([5, 1, 2]) == 7  # three times of four
    assert cache.next([2, 8]) is None  # once only
    assert guess(Lookup(cache), [50, 1, 2], 4) == [7, 1, 2, 7]
    path = tmp_path / "grams"
    cache.write(path)
    again = NGramCache(model)
    again.read(path)
    assert len(again) == len(cache) and again.next([1, 2]) == 7
    again.read(path)  # counts are added
    assert again.next([2, 8]) == 1
    again.read(tmp_path / "none")


def test_files_that_are_refused(model: Model, tmp_path: Path) -> None:
    cache, path = NGramCache(model), tmp_path / "grams"
    cache.add([1, 2, 3, 4])
    cache.write(path)
    good = path.read_bytes()
    at = len(MAGIC) + 40

    def entry(*values: int) -> bytes:
        return good[:at] + struct.pack("<4i", *values) + good[at + 16 :]

    bad = {
        "no file of n-grams": [b"", good[:20], b"x" + good[1:], good[: at - 1]],
        "another vocabulary": [good[: len(MAGIC)] + b"\0" * 32 + good[at - 8 :]],
        "do not fit its size": [good[:-1], good + b"\0", good[: at - 1] + b"\xff" + good[at:]],
        "out of range": [entry(1, 2, 96, 1), entry(-1, 2, 3, 1), entry(1, 2, 3, 0)],
    }
    for message, contents in bad.items():
        for data in contents:
            path.write_bytes(data)
            with pytest.raises(SpeculationError, match=f"`lookup_cache` .*grams: .*{message}"):
                NGramCache(model).read(path)
    with pytest.raises(SpeculationError, match="No such file"):
        cache.write(tmp_path / "none" / "grams")
    with pytest.raises(SpeculationError, match="directory"):
        NGramCache(model).read(tmp_path)
