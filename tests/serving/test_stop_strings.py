"""Text that ends before the first stop string, wherever tokens are cut."""

from __future__ import annotations

import random
import time

import pytest

from gguflow.engine.text import StoppingText


class Pieces:
    """A decoder whose tokens are numbers of pieces."""

    def __init__(self, pieces: list[str], rest: str = "") -> None:
        self.pieces, self.rest = pieces, rest

    def push(self, token: int) -> str:
        return self.pieces[token]

    def flush(self) -> str:
        return self.rest


def read(pieces: list[str], stops: list[str], rest: str = "") -> tuple[list[str], str | None]:
    stream = StoppingText(Pieces(pieces, rest), stops)
    return [*map(stream.push, range(len(pieces))), stream.flush()], stream.found


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "found"),
    [
        (["Hello", " world"], [], ["Hello", " world", ""], None),
        (["Hello", " world"], ["lo w"], ["Hel", "", ""], "lo w"),
        (["Hello", " there"], ["lo w"], ["Hel", "lo there", ""], None),
        (["ab", "ab", "ac"], ["abac"], ["", "ab", "", ""], "abac"),
        (["a", "b"], ["abc"], ["", "", "ab"], None),
        (["xstop", "y"], ["stop"], ["x", "", ""], "stop"),
        (["xstopy"], ["stop"], ["x", ""], "stop"),
        (["one\n", "\n", "two"], ["\n\n"], ["one", "", "", ""], "\n\n"),
        (["abcd"], ["abcde", "bc"], ["a", ""], "bc"),  # the first to end
        (["zab"], ["b", "ab"], ["z", ""], "ab"),  # the longest of those that end there
        (["aaa", "ab"], ["aab"], ["a", "a", ""], "aab"),
        (["\u00e9", "\u4e2d\u6587"], ["\u6587"], ["\u00e9", "\u4e2d", ""], "\u6587"),
    ],
)
def test_stops(pieces: list[str], stops: list[str], text: list[str], found: str | None) -> None:
    assert read(pieces, stops) == (text, found)


def test_what_a_decoder_holds_back_counts_too() -> None:
    assert read(["ab"], ["bX"], rest="X") == (["a", ""], "bX")
    assert read(["ab"], ["bX"], rest="Y") == (["a", "bY"], None)


def first(text: str, stops: list[str]) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def test_random_texts_and_cuts() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choices("ab\n", k=rng.randrange(40)))
        stops = [
            "".join(rng.choices("ab\n", k=rng.randrange(1, 6))) for _ in range(rng.randrange(5))
        ]
        cuts = sorted(rng.choices(range(len(text) + 1), k=6))
        bounds = [0, *cuts, len(text)]
        pieces = [text[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
        made, found = read(pieces, stops)
        assert ("".join(made), found) == first(text, stops)


def test_many_long_strings_cost_no_more_than_few() -> None:
    def seconds(stops: list[str]) -> float:
        stream = StoppingText(Pieces(["a" * 10]), stops)
        began = time.perf_counter()
        for _ in range(2000):
            stream.push(0)
        return time.perf_counter() - began

    few = min(seconds(["ab"]) for _ in range(3))
    many = min(seconds(["a" * 2000 + chr(1000 + i) for i in range(50)]) for _ in range(3))
    assert many < 10 * few + 0.05


@pytest.mark.parametrize("bad", [["a", ""], "text", [1]])
def test_what_is_refused(bad: list[str]) -> None:
    with pytest.raises((ValueError, TypeError), match="stop"):
        StoppingText(Pieces([]), bad)
