"""Long numbers, cut where a pre-tokenizer that groups digits from the right would cut them anyway.

Such patterns look ahead to the end of the number at every group, so that their time grows with the
square of its length. Its end says where groups begin, and a cut between two changes nothing.
"""

from __future__ import annotations

import re
import unicodedata

from gguflow.engine.dataclass import dataclass

PIECE = 300  # digits; a multiple of the groups' three
_CANDIDATE = re.compile(rf"[^\W_]{{{PIECE},}}")


@dataclass(frozen=True)
class Grouping:
    """Which characters a pattern groups, and when it does so from the right.

    categories: Unicode's, of digits: "Nd", or "N" for all numbers. bounded: only numbers that end
    where a word does; others are grouped from the left.
    """

    categories: str
    bounded: bool = False

    def is_digit(self, c: str) -> bool:
        return unicodedata.category(c).startswith(self.categories)


def cut_numbers(text: str, grouping: Grouping) -> list[str]:
    """The text in pieces that can be tokenized each by itself."""
    pieces: list[str] = []
    done = 0
    for word in _CANDIDATE.finditer(text):
        at, end = word.span()
        gap = at  # where groups from the left begin
        while at < end:
            stop = at
            while stop < end and grouping.is_digit(text[stop]):
                stop += 1
            from_right = not grouping.bounded or not _goes_on(text, stop)
            if stop - at > PIECE and (from_right or (at - gap) % 3 == 0):
                first = at + ((stop - at) % PIECE or PIECE if from_right else PIECE)
                for cut in range(first, stop, PIECE):
                    pieces.append(text[done:cut])
                    done = cut
            if stop > at and from_right:
                gap = stop
            elif stop == at and not unicodedata.category(text[at]).startswith("N"):
                gap = at + 1
            at = max(stop, at + 1)
    return [*pieces, text[done:]]


def _goes_on(text: str, at: int) -> bool:
    """Whether the character there belongs to the word before it."""
    kind = unicodedata.category(text[at]) if at < len(text) else ""
    return kind[:1] in ("L", "M", "N") or kind == "Pc"
