"""What ops with a state a sequence share: which rows belong to one, and test operands.

A row's slot says where its sequence's state lives; rows with the same slot are neighbours, in the
order of their positions. A sequence whose first row here is at position 0 starts from zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..graph import F32, I32, Operand, OpSpec, Tensor
from ._common import rows_dense

SEQUENCES = (
    "Rows with one slot are a sequence's next tokens, in order; its state is that row of `state`, "
    "zeros before position 0, and is updated. A slot outside the state (padding) gives zeros."
)
STATE_OPERANDS = ("state f32 [n_slots, n]", "pos i32 [n_tok]", "slot i32 [n_tok]")


def check_state(spec: OpSpec, srcs: Sequence[Tensor | None], at: int, n: int) -> None:
    """Raises `spec`'s ShapeError unless srcs[at:at + 3] are a state of n values a slot, and
    positions and slots of the rows of srcs[0]."""
    state, pos, slot = srcs[at : at + 3]
    x = srcs[0]
    assert state is not None and pos is not None and slot is not None and x is not None
    if state.dtype is not F32 or len(state.shape) != 2 or state.shape[1] != n:
        raise spec.fail(f"the state must be f32 [n_slots, {n}]", *srcs)
    if not rows_dense(state):
        raise spec.fail("the state's rows must be dense", *srcs)
    for t in (pos, slot):
        if t.dtype is not I32 or t.shape != x.shape[:1] or not rows_dense(t):
            raise spec.fail("pos and slot must be dense i32 [n_tok]", *srcs)


def sequences(pos: np.ndarray, slot: np.ndarray, n_slots: int) -> Iterator[tuple[int, slice, bool]]:
    """(slot, rows, whether it goes on from the slot's state) of every sequence."""
    n = len(slot)
    begin = 0
    for end in range(1, n + 1):
        if end == n or slot[end] != slot[begin]:
            if 0 <= slot[begin] < n_slots:
                yield int(slot[begin]), slice(begin, end), bool(pos[begin] != 0)
            begin = end


def state_operands(n: int, seqs: Sequence[tuple[int, int]], pad: int = 0) -> tuple[Any, ...]:
    """A state of n values a slot, positions and slots for sequences of (rows, first position), in
    slots of falling number with one left free; and `pad` rows of padding."""
    slots = np.arange(len(seqs))[::-1] + 1
    pos = np.concatenate([start + np.arange(m) for m, start in seqs] + [np.full(pad, -1)])
    slot = np.concatenate([np.repeat(slots, [m for m, _ in seqs]), np.full(pad, -1)])
    return (
        Operand((len(seqs) + 1, n), role="state"),
        Operand(pos.shape, "i32", pos),
        Operand(slot.shape, "i32", slot),
    )


# Sequences of the test cases: (rows, first position) each, rows of padding.
BATCHES: tuple[tuple[tuple[tuple[int, int], ...], int], ...] = (
    (((1, 7),), 0),
    (((1, 0),), 0),
    (((31, 0),), 0),
    (((5, 3), (1, 0), (33, 2)), 3),
    (((1, 4), (1, 0), (1, 9), (2, 0)), 0),
)
