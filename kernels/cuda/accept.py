"""Launches accept.cu, which belongs to no op."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .advance import GROUPS, StepInputs, all_groups
from .launch import Kernel, Launch, pack

BLOCK = 1024
MOST_GUESSES = 64  # of a sequence in a round


@dataclass(frozen=True)
class RoundPlaces:
    """Addresses of what rounds keep of their sequences, see `RoundMemory`. prepared: 0 for none.
    drafted: whether draft.cu guesses what is not prepared."""

    lines: int
    texts: int
    prepared: int
    capacity: int
    drafted: bool = False


def accept(
    at: StepInputs, keep: RoundPlaces, steps: int, ring: int, size: int, begins: bool = False
) -> Launch:
    """The end of a round on the device; begins: what makes the first round's inputs instead, with
    nothing checked yet.

    steps: address of u32 [n_seqs], the number of rounds made so far. ring: of uint64 [size, n] in
    pinned host memory, size a power of two. Of round s, counted from 1, row s % size has s << 32 |
    token for every row: the token chosen where it was taken, -2 for a guess that did not come true
    and what follows it, -1 for a row that was not there. Raises ValueError for more groups than
    GROUPS.
    """
    groups = all_groups(at.groups)
    args = struct.pack(
        f"@{11 + 2 * GROUPS}P{GROUPS + 7}iq",
        at.token, at.tokens, at.pos, at.seq, at.rng, at.history, keep.lines, keep.texts,
        keep.prepared, steps, ring,
        *(g.rows for g in groups), *(g.table for g in groups), *(g.n_entries for g in groups),
        len(at.groups), at.n_seqs, at.n_history, size, at.n, begins,
        keep.drafted, keep.capacity,
    )  # fmt: skip
    kernel = Kernel("accept.cu", "accept")
    return Launch(kernel, (at.n_seqs, 1, 1), (BLOCK, 1, 1), pack(args), dependent=True)
