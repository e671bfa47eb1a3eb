"""What calls of a template take that is more than in proportion to the sizes of their operands.

Python searches forwards in linear time, but for short texts, and backwards in quadratic time; what
is cut from a text's ends is looked up in a text; lists are joined by copying. Steps for these are
spent before they run, and so are those of filters that look at every character in Python.
"""

from __future__ import annotations

from typing import Any

# Names that look for the first text argument in their owner, forwards and backwards, and whose
# argument is a set of characters.
_FORWARDS = frozenset(("count", "find", "in", "index", "partition", "replace", "split"))
_BACKWARDS = frozenset(("rfind", "rindex", "rpartition", "rsplit"))
_CUTTING = frozenset(("lstrip", "rstrip", "strip", "trim"))
# Those that make a list of a text's characters, or look at each of them in Python.
_LISTING = frozenset(("batch", "groupby", "join", "list", "slice", "sort", "title"))
_LOOPING = frozenset(("format", "indent", "title", "wordcount"))
_PIECES = frozenset(("rsplit", "split", "splitlines"))
_BREAKS = tuple(c for c in map(chr, range(0x3001)) if c.isspace())

_ITEM = 16  # of a list, in sizes
_PAIRS_PER_STEP = 2048  # of characters that are compared
_CHARACTERS_PER_STEP = 4  # that Python looks at
_LINEAR_FROM = 30_000  # characters of a text in which Python's search is linear, or
_LINEAR_FOR = 100  # of what is searched for


def search_steps(name: str, operands: list[Any], sizes: list[int]) -> int:
    """Steps of a call beyond those for its operands. sizes: of the operands."""
    texts = [x for x in operands if isinstance(x, str)]
    if name == "sum":  # of lists, each of which is copied for the next one
        n = 0 if all(isinstance(x, (int, float, str)) for x in operands[1:]) else sizes[0] // _ITEM
        return n * n // _PAIRS_PER_STEP
    steps = sum(map(len, texts)) // _CHARACTERS_PER_STEP if name in _LOOPING else 0
    if len(texts) < 2:
        return steps
    n, m = len(texts[0]), len(texts[1])
    if name == "in":  # the owner comes last
        n, m = m, n
    if name in _FORWARDS:
        return steps + min(n, _LINEAR_FROM) * min(m, _LINEAR_FOR) // _PAIRS_PER_STEP
    if name in _BACKWARDS or name in _CUTTING:
        return steps + n * m // _PAIRS_PER_STEP
    return steps


def pieces(name: str, operands: list[Any]) -> int:
    """Items that a call makes of one text, at most; 0 for calls that make none."""
    if name in _LISTING:
        return max((len(x) for x in operands if isinstance(x, str)), default=0)
    if name not in _PIECES or not operands or not isinstance(operands[0], str):
        return 0
    text, most = operands[0], [x for x in operands[1:] if isinstance(x, int) and x >= 0]
    if name == "splitlines":
        found = sum(map(text.count, _BREAKS)) + 1
    else:
        separators = [x for x in operands[1:] if isinstance(x, str) and x]
        found = sum(map(text.count, separators or _BREAKS)) + 1
        found = min([found, *(n + 1 for n in most)])
    return found
