"""The rows of a run: which tokens of which sequences, in the order that plans want them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
    cache's numbers. out: int, the rows with an output, in their order.
    """

    tokens: np.ndarray
    pos: np.ndarray
    seq: np.ndarray
    seqs: np.ndarray
    n_single: int
    out: np.ndarray

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)


def single_rows(seqs: np.ndarray, tokens: np.ndarray, pos: np.ndarray) -> Rows:
    """One generated token each of some sequences, all int [n]."""
    each = np.arange(len(seqs))
    return Rows(tokens, pos, each, seqs, len(seqs), each)


def rows_of(kv: KvCache, pieces: Sequence[Piece]) -> Rows:
    """The rows of pieces, of which single ones come first and each sequence has one."""
    if len(pieces) == 1:  # a prompt by itself, whose first token is waited for
        (p,) = pieces
        n, start = len(p.ids), kv.length(p.seq) + p.ahead
        return Rows(
            np.array(p.ids), np.arange(start, start + n), np.zeros(n, int), np.array([p.seq]),
            int(p.single), np.arange(n - p.n_out, n),
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
    )
