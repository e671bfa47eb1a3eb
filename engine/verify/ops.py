"""Shadow runs: every op of a plan by itself on its device, held to the oracle on the operands that
the device had, so that an error is seen where it is made and nowhere after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gguflow.engine.backends.base import Backend, Live, Meets, Memory, Program, Ticks, refuse
from gguflow.engine.backends.host import read
from gguflow.engine.compile import Step, with_gaps
from gguflow.engine.compile.batch_rows import fewer_rows
from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import DType, Role, Tensor, op_spec

from .checks import n_not_finite, nmse
from .oracle import Expected, Oracle

# A result that is rounded to a type may fall to either side of an edge between two of its values;
# NMSE of an element in ten doing so. Types not listed hold what the op made.
_ROUNDING = {"f16": 1e-7, "bf16": 3e-6, "q8_0": 3e-5}


@dataclass(frozen=True)
class OpRow:
    """An op of a run. error: NMSE of all that it wrote, against the oracle on the same operands.
    not_finite: values of the result that are NaN or infinite; inherited: whether an operand held
    such a value. limit: what the op's own tests allow."""

    run: str
    name: str
    op: str
    backend: str
    kernel: str
    shape: tuple[int, ...]
    types: tuple[str, ...]
    error: float
    limit: float
    not_finite: int
    inherited: bool

    @property
    def ok(self) -> bool:
        return self.error <= self.limit

    @property
    def share(self) -> float:
        """The error as a share of what is allowed, which may be none at all."""
        return self.error / self.limit if self.limit else (np.inf if self.error else 0.0)


def first_fault(rows: Sequence[OpRow]) -> OpRow | None:
    """The first op that differs from its reference."""
    return next((r for r in rows if not r.ok), None)


def by_op(rows: Sequence[OpRow]) -> list[tuple[str, str, list[OpRow]]]:
    """(op, backend, rows), the largest error in proportion to its limit first."""
    groups: dict[tuple[str, str], list[OpRow]] = {}
    for r in rows:
        groups.setdefault((r.op, r.backend), []).append(r)
    found = [(op, backend, of) for (op, backend), of in groups.items()]
    return sorted(found, key=lambda g: -max(r.share for r in g[2]))


class Shadow:
    """What shadowed backends share. weights: the bytes of a weight by its name, as the file has
    them. seen: called with every row. run: what is under way, in a word."""

    def __init__(
        self,
        oracle: Oracle,
        weights: Callable[[str], np.ndarray | None],
        seen: Callable[[OpRow], None],
    ) -> None:
        self.oracle, self.weights, self.seen = oracle, weights, seen
        self.run = ""


class ShadowBackend:
    """A backend whose programs run an op at a time and tell of each. All else is the backend's own,
    but that it meets no other device in the middle."""

    links = None

    def __init__(self, backend: Backend, shadow: Shadow) -> None:
        self._backend, self._shadow = backend, shadow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def lower(
        self,
        steps: Sequence[Step],
        memory: Memory,
        n_threads: int | None = None,
        meets: Meets | None = None,
    ) -> ShadowProgram:
        return ShadowProgram(self._backend, self._shadow, steps, memory, n_threads)


class ShadowProgram(Program):
    """A program an op at a time."""

    def __init__(
        self,
        backend: Backend,
        shadow: Shadow,
        steps: Sequence[Step],
        memory: Memory,
        n_threads: int | None,
    ) -> None:
        self._backend, self._shadow, self._memory = backend, shadow, memory
        self._nodes = [s if isinstance(s, Tensor) else refuse(s, backend.name) for s in steps]
        self._n_threads = n_threads
        self._programs = [backend.lower([n], memory, n_threads) for n in self._nodes]
        self.kernels = [p.kernels[0] for p in self._programs]

    def start(self, timed: bool = False, live: Live | None = None) -> None:
        for node, program in zip(self._nodes, self._programs, strict=True):
            held = {s.owner: self._bytes(s.owner) for s in node.live_srcs()}
            program.start(False, live)
            program.finish()
            self._shadow.seen(self._row(node, program, held, live))

    def finish(self) -> Ticks | None:
        return None

    def _bytes(self, owner: Tensor) -> np.ndarray:
        """A copy of an operand as it is on the device; of weights, the file's own bytes, with the
        padding that their rows have there."""
        raw = self._shadow.weights(owner.name) if owner.role is Role.WEIGHT else None
        return self._on_device(owner) if raw is None else with_gaps(owner, raw)

    def _on_device(self, owner: Tensor) -> np.ndarray:
        buffer, offset = self._memory.locate(owner)
        return buffer.read(offset, owner.stored_bytes).copy()

    def _row(
        self, node: Tensor, program: Program, held: Mapping[Tensor, np.ndarray], live: Live | None
    ) -> OpRow:
        assert node.op is not None
        expected = self._shadow.oracle.run(node, held, self._memory.rows, live)
        found = self._found(node, expected, live)
        states = [(s, read(s, {s: self._on_device(s)}), read(s, held)) for s in expected.states]
        errors = [_state_error(was, now, expected.states[s]) for s, now, was in states]
        bad = 0
        if found is not None and expected.value is not None:
            errors.append(nmse(found, expected.value))
            bad = n_not_finite(found)
        written = [s.dtype for s in expected.states] or [node.dtype]
        operands = (s for s in node.live_srcs() if s.owner.role is not Role.WEIGHT)
        return OpRow(
            self._shadow.run, node.name, node.op, self._backend.name, program.kernels[0],
            node.shape, tuple(s.dtype.name for s in node.live_srcs()), max(errors),
            max(op_spec(node.op).tolerance, *map(_rounding, written)), bad,
            bool(bad) and any(n_not_finite(read(s, held)) for s in operands),
        )  # fmt: skip

    def _found(self, node: Tensor, expected: Expected, live: Live | None) -> np.ndarray | None:
        if expected.value is None:
            return None
        if live is not None:
            node = fewer_rows(node, self._memory.rows, live)
        return read(node, {node.owner: self._on_device(node.owner)})


def _rounding(dtype: DType) -> float:
    return _ROUNDING.get(dtype.name, 0.0)


def _state_error(was: np.ndarray, now: np.ndarray, expected: np.ndarray) -> float:
    """NMSE over the rows that were to change, or that did."""

    def changed(x: np.ndarray) -> np.ndarray:
        same = (x == was) | ((x != x) & (was != was))
        return ~same.reshape(len(x), -1).all(axis=1)

    rows = changed(now) | changed(expected)
    return nmse(now[rows], expected[rows])
