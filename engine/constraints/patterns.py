"""How large a regular expression becomes: what is repeated is written out by whoever runs it."""

from __future__ import annotations

import re

from .error import ConstraintRefused

MOST_PARTS = 5000  # of an expression whose repetitions are written out
# Under the flag x, spaces and comments may stand between a part and its repetition, and within it.
_SPACED = re.compile(r"\(\?[a-zA-Z]*x")
_SPACE = re.compile(r"(\\.)|\s+|#[^\n]*", re.DOTALL)
_REPEAT = re.compile(r"\{(\d*)(,?)(\d*)\}")


def check_pattern(pattern: str, field: str, where: str = "") -> None:
    """Raises ConstraintRefused for a pattern that is small and becomes very large. where: what has
    it within the field, for the message."""
    if parts(pattern) > MOST_PARTS:
        raise ConstraintRefused(field, f"{where}a pattern of more than {MOST_PARTS} parts")


def parts(pattern: str) -> int:
    """Characters, classes and groups of a pattern, those that are repeated counted as often. Of
    groups in groups they would be numbers of thousands of digits: what is repeated counts no more
    than it takes to be too much."""
    if _SPACED.search(pattern):
        pattern = _SPACE.sub(lambda found: found[1] or "", pattern)
    sizes, last, at = [0], 0, 0  # of open groups; of the part that a repetition would repeat
    while at < len(pattern):
        c, repeat = pattern[at], _REPEAT.match(pattern, at)
        at += 1
        if repeat:
            times = max(int((repeat[3] or repeat[1] or "1")[:9]), 1)
            sizes[-1] += last * (times - 1)
            last = min(last * times, MOST_PARTS + 1)
            at = repeat.end()
        elif c == "(":
            sizes.append(0)
        elif c == ")":
            last = min(sizes.pop(), MOST_PARTS + 1) if len(sizes) > 1 else 0
            sizes[-1] += last
        elif c not in "*+?|^$":
            if c == "\\":
                at += 1
            elif c == "[":
                at = _class_end(pattern, at)
            last = 1
            sizes[-1] += 1
    return sum(sizes)


def _class_end(pattern: str, at: int) -> int:
    """Behind a class whose first character is at `at`."""
    at += pattern.startswith("^", at)
    at += pattern.startswith("]", at)
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1
