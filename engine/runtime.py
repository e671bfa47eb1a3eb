"""Runtime: a plan bound to memory and lowered, ready to run again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import numpy as np

from gguflow.engine.backends.base import Backend, Buffer, Executable, TokenLoop
from gguflow.engine.compile import Copy, Plan, round_up
from gguflow.engine.graph import Role, Tensor, op_spec
from gguflow.engine.profile import PlanRow, PlanRows

Place = tuple[Buffer, int]  # a buffer and a byte offset into it

# Outputs up to this size come back with every run; larger ones when they are asked for.
SHARED_OUTPUT_BYTES = 16 << 10


@dataclass
class BoundMemory:
    """Where every tensor of one plan lives: the `Memory` a backend lowers against.

    shared: inputs and small outputs, which host and device both reach.
    copies: values brought to a space other than their own, by (owner, space).
    """

    plan: Plan
    weights: Mapping[str, Buffer]
    packed: set[str]
    states: Mapping[str, Buffer]
    shared: Mapping[Tensor, Place]
    arenas: Mapping[str, Buffer]
    copies: Mapping[tuple[Tensor, str], Place] = field(default_factory=dict)

    def locate(self, owner: Tensor) -> Place:
        """Where a tensor lives at home."""
        if owner in self.shared:
            return self.shared[owner]
        if owner.role is Role.WEIGHT:
            return self.weights[owner.name], 0
        if owner.role is Role.STATE:
            return self.states[owner.name], 0
        space = self.plan.space_of(owner)
        return self.arenas[space], self.plan.arenas[space].offsets[owner]

    def is_packed(self, owner: Tensor) -> bool:
        return owner.role is Role.WEIGHT and owner.name in self.packed


@dataclass
class SpaceMemory:
    """The same seen from one space: values copied there are found where the copy is."""

    memory: BoundMemory
    space: str

    def locate(self, owner: Tensor) -> Place:
        copied = self.memory.copies.get((owner, self.space))
        return copied if copied is not None else self.memory.locate(owner)

    def is_packed(self, owner: Tensor) -> bool:
        return self.memory.is_packed(owner)


@dataclass(frozen=True)
class BoundCopy:
    """Bytes to bring from one place to another before a segment runs."""

    source: Place
    target: Place
    nbytes: int

    def run(self) -> None:
        (source, at), (target, to) = self.source, self.target
        target.write(to, source.read(at, self.nbytes))


class Outputs(Sequence[np.ndarray]):
    """A plan's outputs after a run, as arrays that the next run overwrites. Those that lie only on
    a device are fetched when they are indexed."""

    def __init__(self, memory: BoundMemory, tensors: Sequence[Tensor]) -> None:
        self._memory = memory
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors)

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...

    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(index, slice):
            return [host_array(self._memory, t) for t in self._tensors[index]]
        return host_array(self._memory, self._tensors[index])


@dataclass
class BoundPlan:
    """A lowered plan. Inputs are numpy arrays to write before `run`; outputs are arrays to read."""

    plan: Plan
    memory: BoundMemory
    segments: list[Executable]
    copies: list[list[BoundCopy]]  # by segment, before it runs
    inputs: dict[str, np.ndarray]
    outputs: Outputs
    _rows: PlanRows | None = field(default=None, repr=False)

    def run(self, ends_ns: np.ndarray | None = None) -> None:
        """Run every segment once, one native call each.

        ends_ns: int64 [n_ops + 1] for the clock, when profiling: the start, then each op's end.
        Copies before a segment count to its first op.
        """
        at = 0
        for s, copies in zip(self.segments, self.copies, strict=True):
            for c in copies:
                c.run()
            if ends_ns is None:
                s.run()
                continue
            part = np.empty(s.n_ops + 1, np.int64)
            s.run(part)
            ends_ns[at : at + s.n_ops + 1] = part if at == 0 else (ends_ns[at], *part[1:])
            at += s.n_ops

    @cached_property
    def token_loop(self) -> TokenLoop | None:
        """Steps that need no host, for a sampled plan of one token that is wholly on one device."""
        make = getattr(self.segments[0], "token_loop", None)
        if len(self.segments) != 1 or any(self.copies) or make is None:
            return None
        leaves = self.plan.graph.leaves
        names = "tokens", "pos", "sampler.rng", "sampler.history"
        places = {name: self.memory.locate(leaves[name]) for name in names}
        token = self.plan.graph.outputs[-1]
        places["token"] = self.memory.locate(token.owner)
        loop: TokenLoop = make(places, leaves["sampler.history"].size)
        return loop

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
    """A tensor as a numpy array: over its memory where the host reaches it, else over a copy."""
    buffer, offset = memory.locate(t.owner)
    raw = buffer.host()
    if raw is None:
        raw, offset = buffer.read(offset, t.owner.nbytes), 0
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
    """Give the plan addresses and lower it. Arenas must be at least as large as it asks.

    Raises ValueError for a plan that would write a state from another memory space.
    """
    shared = _alloc_shared(plan, backends)
    memory = BoundMemory(plan, weights, packed, states, shared, arenas)
    memory.copies = _alloc_copies(plan, backends)
    views = {space: SpaceMemory(memory, space) for space in arenas}
    copies = [_bind_copies(memory, s.copies) for s in plan.segments]
    segments = [
        backends[s.backend].compile(s.nodes, views[plan.spaces[s.backend]], n_threads)
        for s in plan.segments
    ]
    arrays = {t.name: host_array(memory, t) for t in plan.leaves(Role.INPUT)}
    return BoundPlan(plan, memory, segments, copies, arrays, Outputs(memory, plan.graph.outputs))


def _alloc_shared(plan: Plan, backends: Mapping[str, Backend]) -> dict[Tensor, Place]:
    """For each backend, one buffer with its inputs and one with its small outputs."""
    outputs = {t.owner for t in plan.graph.outputs if t.owner.role is Role.NODE}
    small = [t for t in outputs if t.nbytes <= SHARED_OUTPUT_BYTES]
    placed: dict[Tensor, Place] = {}
    for group in (plan.leaves(Role.INPUT), small):
        for name, backend in backends.items():
            mine = [t for t in group if plan.placement.of[t] == name]
            placed |= _lay_out(mine, backend.alloc_shared) if mine else {}
    return placed


def _alloc_copies(plan: Plan, backends: Mapping[str, Backend]) -> dict[tuple[Tensor, str], Place]:
    """Room in each space for what is copied into it."""
    by_space = {b.space: b for b in backends.values()}
    placed: dict[tuple[Tensor, str], Place] = {}
    for space, backend in by_space.items():
        owners = {c.owner: None for s in plan.segments for c in s.copies if c.target == space}
        if owners:
            laid_out = _lay_out(list(owners), backend.alloc)
            placed |= {(owner, space): place for owner, place in laid_out.items()}
    for s in plan.segments:
        for n in s.nodes:
            for owner in _written_owners(n):
                if (owner, plan.spaces[s.backend]) in placed:
                    raise ValueError(
                        f"{n.name} runs on {s.backend} but writes {owner.name}, which lives in "
                        f"{plan.space_of(owner)}; place both on one device"
                    )
    return placed


def _written_owners(n: Tensor) -> list[Tensor]:
    """What a node writes into besides memory of its own."""
    also = [n.srcs[i] for i in op_spec(n.op).also_writes] if n.op else []
    return [*([n.view_of] if n.view_of is not None else []), *(s.owner for s in also if s)]


def _lay_out(tensors: Sequence[Tensor], alloc: Callable[[int], Buffer]) -> dict[Tensor, Place]:
    """One buffer from `alloc` with these tensors end to end."""
    offsets, total = {}, 0
    for t in tensors:
        offsets[t] = total
        total += round_up(t.nbytes)
    buffer = alloc(total)
    return {t: (buffer, offset) for t, offset in offsets.items()}


def _bind_copies(memory: BoundMemory, copies: Sequence[Copy]) -> list[BoundCopy]:
    """What a segment copies at every run. Weights never change: they are copied here, once."""
    bound = []
    for c in copies:
        place = memory.copies[c.owner, c.target]
        copy = BoundCopy(memory.locate(c.owner), place, c.owner.nbytes)
        if c.owner.role is Role.WEIGHT:
            copy.run()
        else:
            bound.append(copy)
    return bound
