"""Where every tensor of a plan lives, and what is copied from one memory space to another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from gguflow.engine.backends.base import Backend, Buffer
from gguflow.engine.compile import Copy, Plan, Recv, round_up
from gguflow.engine.compile.batch_rows import batch_rows
from gguflow.engine.compile.memory import SHARED_OUTPUT_BYTES
from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.graph import Role, Tensor, written_owners

Place = tuple[Buffer, int]  # a buffer and a byte offset into it
Alloc = Callable[[int], Buffer]


@dataclass
class BoundMemory:
    """Where every tensor of one plan lives: the `Memory` a backend lowers against.

    shared: inputs and small outputs, which host and device both reach.
    copies: values brought to a space other than their own, by (owner, space).
    sent: what the host makes for a device it runs beside, in pinned memory.
    """

    plan: Plan
    weights: Mapping[str, Buffer]
    packed: set[str]
    states: Mapping[str, Buffer]
    shared: Mapping[Tensor, Place]
    arenas: Mapping[str, Buffer]
    copies: Mapping[tuple[Tensor, str], Place] = field(default_factory=dict)
    sent: Mapping[Tensor, Place] = field(default_factory=dict)

    @cached_property
    def rows(self) -> Mapping[Tensor, str]:
        """What follows the batch's rows, and which."""
        return batch_rows(self.plan.graph)

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

    @property
    def rows(self) -> Mapping[Tensor, str]:
        return self.memory.rows

    def holds(self, owner: Tensor) -> bool:
        """Whether the space has it, or a copy."""
        return (owner, self.space) in self.memory.copies or (
            self.memory.plan.space_of(owner) == self.space
        )

    def locate(self, owner: Tensor) -> Place:
        copied = self.memory.copies.get((owner, self.space))
        return copied if copied is not None else self.memory.locate(owner)

    def is_packed(self, owner: Tensor) -> bool:
        return self.memory.is_packed(owner)


@dataclass(frozen=True)
class BoundCopy:
    """Bytes to bring from one place to another.

    to_mirror: the target is memory of `alloc_shared`, which a program itself brings to the device.
    """

    source: Place
    target: Place
    nbytes: int
    to_mirror: bool = False

    def run(self) -> None:
        (source, at), (target, to) = self.source, self.target
        data = source.read(at, self.nbytes)
        if not self.to_mirror:
            return target.write(to, data)
        mirror = target.host()
        assert mirror is not None
        mirror[to : to + self.nbytes] = data


def bound_copy(memory: BoundMemory, owner: Tensor, space: str) -> BoundCopy:
    """The copy of a value to another space."""
    target = memory.copies[owner, space]
    return BoundCopy(memory.locate(owner), target, owner.stored_bytes, owner.role is Role.INPUT)


def host_array(memory: BoundMemory, t: Tensor, into: np.ndarray | None = None) -> np.ndarray:
    """A tensor as a numpy array: over its memory where the host reaches it, else over a copy. into:
    where that may be, uint8."""
    buffer, offset = memory.locate(t.owner)
    raw = buffer.host()
    if raw is None:
        raw, offset = buffer.read(offset, t.owner.stored_bytes, into), 0
    return np.ndarray(t.shape, t.dtype.storage, raw.data, offset + t.view_offset, t.strides)


def host_row(memory: BoundMemory, t: Tensor, i: int) -> np.ndarray:
    """`host_array(memory, t)[i]`, of which no other row is copied."""
    buffer, offset = memory.locate(t.owner)
    if buffer.host() is not None or t.strides[0] < 0:
        return host_array(memory, t)[i]
    start = offset + t.view_offset + i * t.strides[0]
    inner = zip(t.shape[1:], t.strides[1:], strict=True)
    raw = buffer.read(start, t.dtype.storage.itemsize + sum((n - 1) * step for n, step in inner))
    return np.ndarray(t.shape[1:], t.dtype.storage, raw.data, 0, t.strides[1:])


def alloc_shared(plan: Plan, backends: Mapping[str, Backend]) -> dict[Tensor, Place]:
    """For each backend, one buffer with its inputs and one with its small outputs."""
    outputs = {t.owner for t in plan.graph.outputs if t.owner.role is Role.NODE}
    small = [t for t in outputs if t.nbytes <= SHARED_OUTPUT_BYTES]
    placed: dict[Tensor, Place] = {}
    for group in (plan.leaves(Role.INPUT), small):
        for name, backend in backends.items():
            mine = [t for t in group if plan.placement.of[t] == name]
            placed |= lay_out(mine, backend.alloc_shared)
    return placed


def alloc_copies(
    plan: Plan,
    backends: Mapping[str, Backend],
    alloc: Mapping[str, Alloc],
    shared: Callable[[Backend], Buffer],
) -> dict[tuple[Tensor, str], Place]:
    """Room in each space for what is copied into it; alloc: by space, instead of its backend's.
    shared: a device's memory for those copies that lie where other plans' do.

    Raises ValueError for a node that would write into a copy.
    """
    by_space = {b.space: b for b in backends.values()}
    placed: dict[tuple[Tensor, str], Place] = {}
    for space, backend in by_space.items():
        owners = {c.owner: None for c in _copies(plan) if c.target == space}
        inputs = [o for o in owners if o.role is Role.INPUT]
        common = [o for o in owners if plan.is_shared(o, space)]
        own = [o for o in owners if o.role is not Role.INPUT and not plan.is_shared(o, space)]
        laid_out = lay_out(inputs, backend.alloc_shared)
        laid_out |= lay_out(own, alloc.get(space, backend.alloc))
        laid_out |= lay_out(common, lambda _, b=backend: shared(b))  # type: ignore[misc]
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


def _copies(plan: Plan) -> list[Copy]:
    """All that crosses, whenever it does."""
    met = (s.meeting for s in plan.steps if isinstance(s, Recv))
    values = (
        Copy(o, plan.space_of(o), plan.spaces[m.target]) for m in met for o in m.owners
    )  # fmt: skip
    return [*plan.brought, *values]


def lay_out(tensors: Sequence[Tensor], alloc: Alloc) -> dict[Tensor, Place]:
    """One buffer from `alloc` with these tensors end to end; none for no tensors."""
    offsets, total = {}, 0
    for t in tensors:
        offsets[t] = total
        total += round_up(t.stored_bytes)
    if not offsets:
        return {}
    buffer = alloc(total)
    return {t: (buffer, offset) for t, offset in offsets.items()}
