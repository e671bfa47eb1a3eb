"""What devices exchange over: memory that all plans of a runner have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from gguflow.engine.backends.base import Backend, Buffer
from gguflow.engine.compile import Exchanged, Plan, exchange_sizes
from gguflow.engine.graph import exchanged

from .sides import Sides, pinned


class Workspace:
    """Of plans whose devices exchange values: a channel a device, and room for what others bring
    into its memory, as large as the largest plan asks. A run of one of them ends before that of
    another begins, or both pass every device in the same order.

    A channel is laid out alike for all plans: what one exchange leaves there the next one finds.
    exchanged: what it is laid out for.
    """

    def __init__(self) -> None:
        self.exchanged = Exchanged()
        self._nbytes: dict[str, tuple[int, int]] = {}  # of a channel, of the room; by memory space
        self._channels: dict[str, Buffer] = {}  # by backend
        self._rooms: dict[str, Buffer] = {}  # by memory space
        self._n_runs = 0
        self._is_spoilt = False

    def reserve(self, plan: Plan, backends: Mapping[str, Backend]) -> bool:
        """Be large enough for a plan from now on. Whether that takes new memory: plans that were
        bound before keep what they have."""
        names = [b.name for b in backends.values() if b.space in plan.channels]
        if not names:
            return False
        mine = (n for n in plan.nodes if exchanged(n) and plan.placement.of[n] == names[0])
        both = self.exchanged.beside(exchange_sizes(mine))
        nbytes = {}
        for name in names:
            links, space = backends[name].links, backends[name].space
            assert links is not None and links.channel_bytes is not None
            _, room = self._nbytes.get(space, (0, 0))
            nbytes[space] = (
                links.channel_bytes(len(names), *both), max(room, plan.shared_bytes(space))
            )  # fmt: skip
        if nbytes == self._nbytes:
            return False  # a channel that is no larger is laid out as before
        self.exchanged, self._nbytes = both, nbytes
        self._channels, self._rooms = {}, {}
        return True

    def channels(
        self, sides: Sides, plan: Plan, backends: Mapping[str, Backend]
    ) -> dict[str, Buffer]:
        """Of the devices that exchange something, by name: in the host's memory where they are
        apart."""
        for node in sides.reductions[0] if sides.reductions else ():
            name = plan.placement.of[node]
            if name not in self._channels:
                nbytes, _ = self._nbytes[plan.spaces[name]]
                apart = any(name in pair for pair in sides.apart)
                alloc = backends[name].alloc
                self._channels[name] = pinned(backends[name], nbytes) if apart else alloc(nbytes)
        return self._channels if sides.reductions else {}

    def room(self, device: Backend) -> Buffer:
        """For what others bring into a device's memory."""
        if device.space not in self._rooms:
            self._rooms[device.space] = device.alloc(self._nbytes[device.space][1])
        return self._rooms[device.space]

    # -- runs ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A run begins, whose devices nobody else has until it has ended."""
        self._n_runs += 1

    def end(self) -> None:
        self._n_runs -= 1
        self._clear()

    def spoil(self) -> None:
        """A run was given up: what it sent is not to be taken for the next one's."""
        self._is_spoilt = True
        self._clear()

    def _clear(self) -> None:
        """As before the first run, once none is under way."""
        if not self._is_spoilt or self._n_runs:
            return
        self._is_spoilt = False
        clear(list(self._channels.values()))


def clear(buffers: Sequence[Buffer]) -> None:
    for b in buffers:
        with suppress(Exception):  # a device that failed for good says so in its next run
            b.write(0, np.zeros(b.nbytes, np.uint8))
