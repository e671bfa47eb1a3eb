"""Launches advance.cu, which belongs to no op."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from .launch import Kernel, Launch, pack

BLOCK = 256
GROUPS = 8  # of layers that share page tables, at most


@dataclass(frozen=True)
class CacheRows:
    """Of a group of layers: addresses of `rows` i32 [n] and of `table` i32 [n_seqs, n_entries]."""

    rows: int
    table: int
    n_entries: int


@dataclass(frozen=True)
class StepInputs:
    """Addresses of a step's inputs and of what it sampled, for n rows.

    token, tokens, pos, seq: i32 [n]. rng: i64 [n, 2]. history: i32 [n, n_history].
    """

    n: int
    token: int
    tokens: int
    pos: int
    seq: int
    rng: int
    history: int
    n_history: int
    n_seqs: int
    groups: Sequence[CacheRows]


def all_groups(groups: Sequence[CacheRows]) -> list[CacheRows]:
    """GROUPS of them, the others empty. Raises ValueError for more."""
    if len(groups) > GROUPS:
        raise ValueError(f"the cache has {len(groups)} groups of layers; at most {GROUPS} work")
    return [*groups, *[CacheRows(0, 0, 0)] * (GROUPS - len(groups))]


def advance(at: StepInputs, steps: int, ring: int, size: int) -> Launch:
    """The end of a decode step on the device.

    steps: address of u32 [n], the number of steps made so far. ring: of uint64 [size, n] in pinned
    host memory, size a power of two. The token of step s, counted from 1, is stored in row
    s % size as s << 32 | token; a row with a negative position stays as it is and has the token -1.
    Raises ValueError for more groups than GROUPS.
    """
    groups = all_groups(at.groups)
    args = struct.pack(
        f"@{8 + 2 * GROUPS}P{GROUPS + 4}i",
        at.token, at.tokens, at.pos, at.seq, at.rng, at.history, steps, ring,
        *(g.rows for g in groups), *(g.table for g in groups), *(g.n_entries for g in groups),
        len(at.groups), at.n_seqs, at.n_history, size,
    )  # fmt: skip
    kernel = Kernel("advance.cu", "advance")
    return Launch(kernel, (at.n, 1, 1), (BLOCK, 1, 1), pack(args), dependent=True)
