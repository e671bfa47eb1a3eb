"""Weights of a device in a second form beside themselves, where memory is left: 16-bit ones in
fewer bytes, quantized ones as tensor cores want them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gguflow.engine.backends.base import Backend
from gguflow.engine.backends.forms import Compactor
from gguflow.engine.compile import Plan, human_bytes
from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import Role, Tensor
from gguflow.engine.options import OptionError

from .offload import RESERVE, needed
from .weights import weight_users

SHARE = 4  # one part in so many of the memory left is taken without being asked for


@dataclass(frozen=True)
class Room:
    """What the second form of weights takes of a device, and what is left there beside all else
    that a model needs: bytes. weights: with the nodes that read them."""

    device: Backend
    compactor: Compactor
    weights: tuple[tuple[Tensor, Sequence[Tensor]], ...]
    total: int
    left: int

    @property
    def is_small(self) -> bool:
        return 0 < self.total * SHARE <= self.left


def rooms(
    plans: Callable[[], Sequence[Plan]],
    largest: Callable[[], Sequence[Plan]],
    backends: Mapping[str, Backend],
    others: Mapping[str, int],
) -> list[Room]:
    """Of each device that has products read another form, before anything is loaded. plans: of
    single rows, one and, where runs will have them, several. largest: what else is needed there.
    others: bytes, by memory space, that other models there are still to take."""
    devices = [(d, d.compactor) for d in backends.values() if d.compactor is not None and d.holds]
    if not devices:
        return []
    of, found = largest(), list[Room]()
    read = [(plan, weight_users(plan)) for plan in plans()]
    for device, compactor in devices:
        assert device.memory is not None, f"{device.name} computes in the host's memory"
        weights, total = dict[str, tuple[Tensor, Sequence[Tensor]]](), 0
        for plan, users in read:
            for t in plan.leaves(Role.WEIGHT):
                if t.name in weights or backends[plan.placement.of[t]] is not device:
                    continue
                if n := compactor.bytes_of(t, users.get(t, [])):
                    weights[t.name] = t, users[t]
                    total += n
        left = device.memory.room()[0] - needed(of, device).total - RESERVE
        left -= others.get(device.space, 0)
        found.append(Room(device, compactor, tuple(weights.values()), total, left))
    return found


def wanted(found: Sequence[Room], mode: str) -> list[Room]:
    """Those that get it: with "on" all, with "auto" where it is a small part of what is left.
    Raises MemoryError with the figures, or OptionError where there are none, for "on"."""
    if mode == "auto":
        return [r for r in found if r.is_small]
    some = [r for r in found if r.total]
    if not some:
        raise OptionError("`compact_weights`: no GPU has weights that are read in another form")
    for r in some:
        if r.total > r.left:
            raise MemoryError(
                f"{r.device.space}: {human_bytes(r.total)} are needed for compact weights, but only"
                f" {human_bytes(max(0, r.left))} are left beside all else; leave out"
                " `compact_weights`, or lower `n_ctx`"
            )
    return some


def lines(n_bytes: Mapping[str, int]) -> list[str]:
    """What a forecast says of it. n_bytes: by memory space."""
    return [
        f"{space}: {human_bytes(n)} more for weights in a second form"
        for space, n in n_bytes.items()
        if n
    ]
