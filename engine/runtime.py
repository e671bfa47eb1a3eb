"""Runtime: a plan bound to memory and lowered, ready to run again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gguflow.engine.backends.base import Backend, Buffer, Executable
from gguflow.engine.compile import Plan, round_up
from gguflow.engine.graph import Role, Tensor
from gguflow.engine.profile import PlanRow, PlanRows


@dataclass
class BoundMemory:
    """Where every tensor of one plan lives: the `Memory` a backend lowers against."""

    plan: Plan
    weights: Mapping[str, Buffer]
    packed: set[str]
    states: Mapping[str, Buffer]
    inputs: Mapping[str, tuple[Buffer, int]]
    arenas: Mapping[str, Buffer]

    def locate(self, owner: Tensor) -> tuple[Buffer, int]:
        if owner.role is Role.WEIGHT:
            return self.weights[owner.name], 0
        if owner.role is Role.STATE:
            return self.states[owner.name], 0
        if owner.role is Role.INPUT:
            return self.inputs[owner.name]
        space = self.plan.space_of(owner)
        return self.arenas[space], self.plan.arenas[space].offsets[owner]

    def is_packed(self, owner: Tensor) -> bool:
        return owner.role is Role.WEIGHT and owner.name in self.packed


@dataclass
class BoundPlan:
    """A lowered plan. Inputs are numpy arrays to write before `run`; outputs are arrays to read."""

    plan: Plan
    memory: BoundMemory
    segments: list[Executable]
    inputs: dict[str, np.ndarray]
    outputs: list[np.ndarray]
    _rows: PlanRows | None = field(default=None, repr=False)

    def run(self, ends_ns: np.ndarray | None = None) -> None:
        """Run every segment once, one native call each.

        ends_ns: int64 [n_ops + 1] for the clock, when profiling: the start, then each op's end.
        """
        if ends_ns is None:
            for s in self.segments:
                s.run()
            return
        at = 0
        for s in self.segments:
            part = np.empty(s.n_ops + 1, np.int64)
            s.run(part)
            ends_ns[at : at + s.n_ops + 1] = part if at == 0 else (ends_ns[at], *part[1:])
            at += s.n_ops

    @property
    def rows(self) -> PlanRows:
        """What a profile knows of this plan, built once."""
        if self._rows is None:
            self._rows = tuple(
                PlanRow.of(n, backend=seg.backend, kernel=exe.kernels[i], segment=k, index=i)
                for k, (seg, exe) in enumerate(zip(self.plan.segments, self.segments, strict=True))
                for i, n in enumerate(seg.nodes)
            )
        return self._rows


def host_array(memory: BoundMemory, t: Tensor) -> np.ndarray:
    """A tensor of a host space as a numpy array over its memory."""
    buffer, offset = memory.locate(t.owner)
    raw = buffer.host()
    if raw is None:
        raise RuntimeError(f"{t.name} is not in host memory")
    return np.ndarray(t.shape, t.dtype.storage, raw.data, offset + t.view_offset, t.strides)


def bind(
    plan: Plan,
    backends: Mapping[str, Backend],
    weights: Mapping[str, Buffer],
    packed: set[str],
    states: Mapping[str, Buffer],
    arenas: Mapping[str, Buffer],
    n_threads: int | None = None,
) -> BoundPlan:
    """Give the plan addresses and lower it. Arenas must be at least as large as it asks."""
    inputs = _alloc_inputs(plan, backends)
    memory = BoundMemory(plan, weights, packed, states, inputs, arenas)
    segments = [backends[s.backend].compile(s.nodes, memory, n_threads) for s in plan.segments]
    arrays = {t.name: host_array(memory, t) for t in plan.leaves(Role.INPUT)}
    outputs = [host_array(memory, t) for t in plan.graph.outputs]
    return BoundPlan(plan, memory, segments, arrays, outputs)


def _alloc_inputs(plan: Plan, backends: Mapping[str, Backend]) -> dict[str, tuple[Buffer, int]]:
    """One small buffer a space holds all inputs of a plan."""
    placed: dict[str, tuple[Buffer, int]] = {}
    for name, backend in backends.items():
        mine = [t for t in plan.leaves(Role.INPUT) if plan.placement.of[t] == name]
        buffer: Any = backend.alloc(sum(round_up(t.nbytes) for t in mine)) if mine else None
        offset = 0
        for t in mine:
            placed[t.name] = (buffer, offset)
            offset += round_up(t.nbytes)
    return placed
