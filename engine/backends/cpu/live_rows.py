"""Fewer rows than a program was made for: the extents in its op records are written anew."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gguflow.engine.backends.base import Live
from gguflow.engine.compile.batch_rows import check_live, row_operands
from gguflow.engine.graph import Tensor

from .abi import GfOp, GfTensor
from .native import CpuLibrary

WORD = 8  # bytes of an extent or an address
KEPT = 256  # numbers of rows whose preparation is remembered


class LiveRows:
    """Addresses and layout stay those of the whole plan; trailing rows are not computed."""

    def __init__(
        self,
        lib: CpuLibrary,
        ops: Any,
        steps: Sequence[object],
        rows: Mapping[Tensor, str],
        n_threads: int,
    ) -> None:
        """ops: a ctypes array of GfOp, one a step, made for all rows."""
        self._lib, self._ops, self._n_threads = lib, ops, n_threads
        self._words = np.frombuffer(ops, np.int64)
        at: dict[str, list[int]] = {}
        most: dict[str, int] = {}
        # What depends on the number of rows: whether an op has a preparation phase, its scratch.
        self._inits: list[tuple[int, str, int]] = []
        self._scratched: list[tuple[int, str]] = []
        for i, step in enumerate(steps):
            if not isinstance(step, Tensor) or not (operands := row_operands(step, rows)):
                continue
            for k in operands:
                t = step if k is None else step.srcs[k]
                assert t is not None
                name = rows[t]
                most[name] = t.shape[0]
                at.setdefault(name, []).append(_extent(i, k, len(t.shape) - 1))
            op = step.op or ""
            if lib.address(f"gf_needs_init_{op}"):
                self._inits.append((i, op, lib.address(f"gf_init_{op}")))
            if lib.address(f"gf_scratch_{op}"):
                self._scratched.append((i, op))
        self._at = {name: np.array(where, np.intp) for name, where in at.items()}
        self._init_at = np.array([_word(i, GfOp.init.offset) for i, _, _ in self._inits], np.intp)
        self.most = most
        self._now = dict(most)
        self._kept: dict[tuple[int, ...], tuple[np.ndarray, int]] = {}

    def set(self, live: Live | None) -> int:
        """Make the records those of so many rows; returns the bytes of scratch they need. Raises
        RowsError for rows that the program was not made for."""
        if live is not None:
            check_live(live, self.most)
        wanted = {name: n if live is None else live.get(name, n) for name, n in self.most.items()}
        for name, n in wanted.items():
            if self._now[name] != n:
                self._words[self._at[name]] = n
        self._now = wanted
        key = tuple(wanted.values())
        if key not in self._kept:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            self._kept[key] = self._prepare()
        inits, scratch = self._kept[key]
        self._words[self._init_at] = inits
        return scratch

    def _prepare(self) -> tuple[np.ndarray, int]:
        """Addresses of the preparation phases that the records need as they are, and scratch."""
        inits = [
            address if self._lib.needs_init(op, self._ops[i]) else 0
            for i, op, address in self._inits
        ]
        found = np.array(inits, np.int64)
        self._words[self._init_at] = found
        sizes = (self._lib.scratch_bytes(op, self._ops[i], self._n_threads)
                 for i, op in self._scratched)  # fmt: skip
        return found, max(sizes, default=0)


def _extent(op: int, operand: int | None, dim: int) -> int:
    """The word of an operand's extent; dim counts from the innermost."""
    tensor = GfOp.dst.offset
    if operand is not None:
        tensor = GfOp.src.offset + operand * ctypes.sizeof(GfTensor)
    return _word(op, tensor + GfTensor.ne.offset + WORD * dim)


def _word(op: int, offset: int) -> int:
    return (op * ctypes.sizeof(GfOp) + offset) // WORD
