"""Rows of generated tokens, computed again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .runner import Runner
from .speculation import MOST_ROWS
from .speculation_rows import verify_rows


def replay(runner: Runner, seq: int, tokens: Sequence[int]) -> None:
    """Give a sequence the rows that it lacks of these, all its tokens: as single rows, which they
    were at first, though many at a time."""
    kv = runner.kv
    while (n := min(len(tokens) - kv.length(seq), MOST_ROWS)) > 0:
        at = kv.length(seq)
        part = tokens[at : at + kv.until_checkpoint(seq, n)]
        kv.grow(seq, len(part))
        runner.run(verify_rows(np.array([seq]), [at], [part], False))
        kv.advance(seq, part, True)


def recall(runner: Runner, seq: int, n: int) -> None:
    """Have a sequence's recurrent state, which is that after its first n tokens, see the others,
    all of which were generated."""
    tokens = runner.kv.tokens(seq)
    for at in range(n, len(tokens), MOST_ROWS):
        part = tokens[at : at + MOST_ROWS]
        runner.run(verify_rows(np.array([seq]), [at], [part], False))
