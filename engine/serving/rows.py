"""The rows of a run: which tokens of which sequences, in the order that plans want them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gguflow.engine.dataclass import dataclass
from gguflow.engine.prompt import ContextError

from .kv import KvCache


@dataclass(frozen=True)
class Piece:
    """The next tokens of a sequence. n_out: how many of them, from the last on, have an output.

    single: a token that was generated, alone in its sequence; else a piece of a prompt. ahead: of
    the sequence, tokens before these that are on their way.
    """

    seq: int
    ids: Sequence[int]
    n_out: int = 0
    single: bool = False
    ahead: int = 0


@dataclass(frozen=True)
class Rows:
    """n rows, the single ones first, of m sequences.

    tokens, pos: int [n]. seq: int [n], which of `seqs` a row belongs to. seqs: int [m], by the
    cache's numbers. out: int, the rows with an output, in their order. sees: int [n], the last
    position that a row sees; None where that is its own.
    """

    tokens: np.ndarray
    pos: np.ndarray
    seq: np.ndarray
    seqs: np.ndarray
    n_single: int
    out: np.ndarray
    sees: np.ndarray | None = None

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)


def single_rows(seqs: np.ndarray, tokens: np.ndarray, pos: np.ndarray) -> Rows:
    """One generated token each of some sequences, all int [n]."""
    each = np.arange(len(seqs))
    return Rows(tokens, pos, each, seqs, len(seqs), each)


def side_by_side(singles: Rows, chunks: Rows) -> Rows:
    """The rows of one run: generated tokens, then pieces of other sequences' prompts."""
    n = singles.n_tokens
    sees = None if chunks.sees is None else np.concatenate([singles.pos, chunks.sees])
    return Rows(
        np.concatenate([singles.tokens, chunks.tokens]),
        np.concatenate([singles.pos, chunks.pos]),
        np.concatenate([singles.seq, chunks.seq + len(singles.seqs)]),
        np.concatenate([singles.seqs, chunks.seqs]),
        singles.n_single + chunks.n_single,
        np.concatenate([singles.out, chunks.out + n]),
        sees,
    )


def rows_of(kv: KvCache, pieces: Sequence[Piece]) -> Rows:
    """The rows of pieces, of which single ones come first and each sequence has one. Raises
    WholePromptError for a piece of a prompt that has to be computed at once."""
    sees = _ends(kv, pieces) if kv.whole_prompts else None
    if len(pieces) == 1:  # a prompt by itself, whose first token is waited for
        (p,) = pieces
        n, start = len(p.ids), kv.length(p.seq) + p.ahead
        return Rows(
            np.array(p.ids), np.arange(start, start + n), np.zeros(n, int), np.array([p.seq]),
            int(p.single), np.arange(n - p.n_out, n), sees,
        )  # fmt: skip
    lengths = [len(p.ids) for p in pieces]
    ends = np.cumsum(lengths).tolist()
    each = list(zip(pieces, lengths, ends, strict=True))
    return Rows(
        np.concatenate([p.ids for p in pieces]),
        np.concatenate([kv.length(p.seq) + p.ahead + np.arange(n) for p, n, _ in each]),
        np.repeat(np.arange(len(pieces)), lengths),
        np.array([p.seq for p in pieces]),
        sum(p.single for p in pieces),
        np.concatenate([np.arange(end - p.n_out, end) for p, _, end in each]),
        sees,
    )


class WholePromptError(ContextError):
    """A part of a prompt that is read in both directions: its tokens see keys that are not there
    before the rest is computed."""


def _ends(kv: KvCache, pieces: Sequence[Piece]) -> np.ndarray:
    """The last position that each row sees: of a prompt's, the prompt's last."""
    for p in pieces:
        if not p.single and (start := kv.length(p.seq) + p.ahead):
            raise WholePromptError(
                f"{len(p.ids)} tokens of a prompt after {start} others: this model reads prompts "
                "in both directions, all of one in one run; raise `n_ubatch` and `n_batch`"
            )
    return np.repeat([kv.length(p.seq) + len(p.ids) - 1 for p in pieces],
                     [len(p.ids) for p in pieces])  # fmt: skip
