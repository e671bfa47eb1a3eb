"""Runtime: a plan bound to memory and lowered, ready to run again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, overload

import numpy as np

from gguflow.engine import env
from gguflow.engine.backends.base import Backend, Buffer, Executable, TokenLoop
from gguflow.engine.compile import Copy, Plan, UnlinkableError, round_up
from gguflow.engine.compile.memory import SHARED_OUTPUT_BYTES
from gguflow.engine.graph import Role, Tensor, written_owners
from gguflow.engine.linked import LinkedPlan, Sides, cut
from gguflow.engine.profile import PlanRow, PlanRows

Place = tuple[Buffer, int]  # a buffer and a byte offset into it


@dataclass
class BoundMemory:
    """Where every tensor of one plan lives: the `Memory` a backend lowers against.

    shared: inputs and small outputs, which host and device both reach.
    copies: values brought to a space other than their own, by (owner, space).
    sent: what the host makes for a device it is linked with, in pinned memory.
    """

    plan: Plan
    weights: Mapping[str, Buffer]
    packed: set[str]
    states: Mapping[str, Buffer]
    shared: Mapping[Tensor, Place]
    arenas: Mapping[str, Buffer]
    copies: Mapping[tuple[Tensor, str], Place] = field(default_factory=dict)
    sent: Mapping[Tensor, Place] = field(default_factory=dict)

    def locate(self, owner: Tensor) -> Place:
        """Where a tensor lives at home."""
        if owner in self.sent:
            return self.sent[owner]
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
    of_input: bool

    def to_mirror(self) -> None:
        """The same for an input whose target is shared: the run itself brings it to the device."""
        (source, at), (target, to) = self.source, self.target
        mirror = target.host()
        assert mirror is not None
        mirror[to : to + self.nbytes] = source.read(at, self.nbytes)

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
    """A lowered plan. Inputs are numpy arrays to write before `run`; outputs are arrays to read.

    make_linked: what makes the linked form of a plan over two devices; None when it has none.
    unlinked: why a plan of several segments has none.
    """

    plan: Plan
    memory: BoundMemory
    segments: list[Executable]
    copies: list[list[BoundCopy]]  # by segment, before it runs
    inputs: dict[str, np.ndarray]
    outputs: Outputs
    make_linked: Callable[[], LinkedPlan] | None = field(default=None, repr=False)
    unlinked: str | None = None
    _runs: int = 0

    def run(self) -> None:
        """Run the plan once: every segment with one native call, or linked from the second run on
        (many plans run once, and the first run loads kernels)."""
        self._runs += 1
        if self.make_linked is not None and self._runs > 1:
            self._bring_inputs()
            self.linked.run()
        else:
            self._run_segments(None)

    def run_timed(self) -> tuple[PlanRows, np.ndarray]:
        """The same with clock readings: the rows of what ran, and for each its start and end, int64
        [n_rows, 2] nanoseconds."""
        self._runs += 1
        if self.make_linked is not None and self._runs > 1:
            self._bring_inputs()
            return self.linked.rows, self.linked.run_timed()
        ends = np.empty(len(self.plan.nodes) + 1, np.int64)
        self._run_segments(ends)
        return self.rows, np.stack([ends[:-1], ends[1:]], axis=1)

    @cached_property
    def linked(self) -> LinkedPlan:
        """The linked form, lowered when it is first wanted."""
        assert self.make_linked is not None
        return self.make_linked()

    def _bring_inputs(self) -> None:
        for c in self._input_copies:
            c.to_mirror()

    @cached_property
    def _input_copies(self) -> list[BoundCopy]:
        return [c for copies in self.copies for c in copies if c.of_input]

    def _run_segments(self, ends_ns: np.ndarray | None) -> None:
        """ends_ns: int64 [n_ops + 1], the start, then each op's end. Copies before a segment count
        to its first op."""
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
        """Steps that need no host, for a plan wholly on one device that samples a token for each of
        its own; each must be alone in its sequence."""
        make = getattr(self.segments[0], "token_loop", None)
        inputs = {t.name: t for t in self.plan.leaves(Role.INPUT)}
        sampled = self.plan.graph.outputs[-1]
        if len(self.segments) != 1 or any(self.copies) or make is None:
            return None
        if "sampler.rng" not in inputs or sampled.shape != inputs["tokens"].shape:
            return None
        loop: TokenLoop = make({**inputs, "token": sampled})
        return loop

    @cached_property
    def rows(self) -> PlanRows:
        """What a profile knows of this plan, built once."""
        return tuple(
            PlanRow.of(n, backend=seg.backend, kernel=exe.kernels[i], segment=k, index=i)
            for k, (seg, exe) in enumerate(zip(self.plan.segments, self.segments, strict=True))
            for i, n in enumerate(seg.nodes)
        )


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
    """Give the plan addresses and lower it. Arenas must be at least as large as it asks. A plan
    over the host and a device is linked where that is possible, unless GGUFLOW_LINK=0.

    Raises ValueError for a plan that would write a state from another memory space.
    """
    shared = _alloc_shared(plan, backends)
    memory = BoundMemory(plan, weights, packed, states, shared, arenas)
    sides, unlinked = _sides(plan, backends)
    pinned: dict[str, Callable[[int], Buffer]] = {}
    if sides is not None:
        device: Any = backends[sides.device]
        pinned[plan.spaces[sides.host]] = device.alloc_pinned
        memory.sent = _lay_out(sides.sent, device.alloc_pinned) if sides.sent else {}
    memory.copies = _alloc_copies(plan, backends, pinned)
    views = {b: SpaceMemory(memory, space) for b, space in plan.spaces.items()}
    copies = [_bind_copies(memory, s.copies) for s in plan.segments]
    segments = [
        backends[s.backend].compile(s.nodes, views[s.backend], n_threads) for s in plan.segments
    ]
    arrays = {t.name: host_array(memory, t) for t in plan.leaves(Role.INPUT)}
    bound = BoundPlan(plan, memory, segments, copies, arrays, Outputs(memory, plan.graph.outputs))
    bound.unlinked = unlinked
    if sides is not None:
        bound.make_linked = partial(LinkedPlan, plan, sides, backends, views, n_threads)
    return bound


def _sides(plan: Plan, backends: Mapping[str, Backend]) -> tuple[Sides | None, str | None]:
    """How to link a plan, or why not."""
    if len(plan.segments) < 2:
        return None, None
    if not env.link():
        return None, "GGUFLOW_LINK=0"
    try:
        return cut(plan, backends), None
    except UnlinkableError as e:
        return None, str(e)


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


def _alloc_copies(
    plan: Plan, backends: Mapping[str, Backend], alloc: Mapping[str, Callable[[int], Buffer]]
) -> dict[tuple[Tensor, str], Place]:
    """Room in each space for what is copied into it; alloc: by space, instead of its backend's."""
    by_space = {b.space: b for b in backends.values()}
    placed: dict[tuple[Tensor, str], Place] = {}
    for space, backend in by_space.items():
        owners = {c.owner: None for s in plan.segments for c in s.copies if c.target == space}
        inputs = [o for o in owners if o.role is Role.INPUT]
        others = [o for o in owners if o.role is not Role.INPUT]
        for group, get in (
            (inputs, backend.alloc_shared),
            (others, alloc.get(space, backend.alloc)),
        ):
            laid_out = _lay_out(group, get) if group else {}
            placed |= {(owner, space): place for owner, place in laid_out.items()}
    for s in plan.segments:
        for n in s.nodes:
            for owner in written_owners(n):
                if (owner, plan.spaces[s.backend]) in placed:
                    raise ValueError(
                        f"{n.name} runs on {s.backend} but writes {owner.name}, which lives in "
                        f"{plan.space_of(owner)}; place both on one device"
                    )
    return placed


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
        is_input = c.owner.role is Role.INPUT
        copy = BoundCopy(memory.locate(c.owner), place, c.owner.nbytes, is_input)
        if c.owner.role is Role.WEIGHT:
            copy.run()
        else:
            bound.append(copy)
    return bound
