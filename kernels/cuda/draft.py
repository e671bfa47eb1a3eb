"""Launches draft.cu, which belongs to no op."""

from __future__ import annotations

import struct

from .accept import RoundPlaces
from .advance import GROUPS, StepInputs, all_groups
from .launch import Kernel, Launch, pack

BLOCK = 256


def draft_first(to: StepInputs, checks: StepInputs, keep: RoundPlaces) -> Launch:
    """After a round, or before the first: the inputs of a draft's first step, two rows a sequence.

    checks: of the round's step. Raises ValueError for more groups than GROUPS.
    """
    return _launch("draft_first", to, checks, keep, 0, 0)


def draft_next(
    token: int, n_rows: int, to: StepInputs, checks: StepInputs, keep: RoundPlaces
) -> Launch:
    """After a step of a draft: its tokens are guesses, which the round will check, and inputs of
    the next step, `to`, of one row a sequence.

    token: address of what was sampled, i32, n_rows a sequence of which the last counts. Raises
    ValueError for more groups than GROUPS.
    """
    return _launch("draft_next", to, checks, keep, token, n_rows)


def _launch(
    entry: str, to: StepInputs, checks: StepInputs, keep: RoundPlaces, token: int, stride: int
) -> Launch:
    groups = all_groups(to.groups)
    known = keep.prepared != 0
    args = struct.pack(
        f"@{11 + 2 * GROUPS}P{GROUPS + 4}iq",
        token, to.tokens, to.pos, to.seq, to.rng, to.history, keep.lines, keep.texts, checks.rng,
        0 if known else checks.tokens, 0 if known else checks.history,
        *(g.rows for g in groups), *(g.table for g in groups), *(g.n_entries for g in groups),
        len(to.groups), to.n_seqs, to.n_history, stride, keep.capacity,
    )  # fmt: skip
    kernel = Kernel("draft.cu", entry)
    return Launch(kernel, (to.n_seqs, 1, 1), (BLOCK, 1, 1), pack(args), dependent=True)
