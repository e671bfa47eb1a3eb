"""Exchanges between threads: every device has a channel, which the others write into.

A channel has a counter of its device's exchanges, then two halves that exchanges use in turn: of
each device a flag, the number of the exchange, and what it made. One that comes to exchange e has
what the others made for e - 1; so they are done with e - 2, and its half can be written again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import reduce

import numpy as np

from gguflow.engine.backends.base import Reduce
from gguflow.engine.compile import round_up

from .waiting import wait_until

HEAD = 64


def channel_bytes(
    n_devices: int, sizes: Sequence[int], shares: Sequence[tuple[int, int]] = ()
) -> int:
    """As `Links.channel_bytes`."""
    return HEAD + 2 * n_devices * _slot(n_devices, sizes, shares)


def all_reduce(part: np.ndarray, r: Reduce) -> np.ndarray:
    """The sum of all devices' parts; zeros once the run was given up."""
    found = exchange(part, [part.shape] * len(r.channels), r)
    return np.zeros(part.shape, np.float32) if found is None else reduce(np.add, found)


def exchange(
    made: np.ndarray, shapes: Sequence[tuple[int, ...]], r: Reduce
) -> list[np.ndarray] | None:
    """What each device made, of these shapes; None once the run was given up."""
    own = r.channels[r.rank]
    counter = ctypes.c_uint32.from_address(own)
    e = counter.value + 1
    slot_bytes = _slot(len(r.channels), r.sizes, r.shares)

    def at(channel: int, rank: int) -> int:
        return channel + HEAD + (e % 2 * len(r.channels) + rank) * slot_bytes

    dense = np.ascontiguousarray(made, np.float32)
    for channel in r.channels:
        slot = at(channel, r.rank)
        ctypes.memmove(slot + HEAD, dense.ctypes.data, dense.nbytes)
        ctypes.c_uint32.from_address(slot).value = e
    found = [np.empty(shape, np.float32) for shape in shapes]
    for rank, into in enumerate(found):
        slot = at(own, rank)
        flag = ctypes.c_uint32.from_address(slot)
        if not wait_until(lambda flag=flag: flag.value == e, r):  # type: ignore[misc]
            return None
        ctypes.memmove(into.ctypes.data, slot + HEAD, into.nbytes)
    counter.value = e
    return found


def _slot(n_devices: int, sizes: Sequence[int], shares: Sequence[tuple[int, int]]) -> int:
    """Room for the largest thing that a device makes: a part, or its share of the rows and one."""
    shared = ((n_devices + 1) * rows * nbytes for rows, nbytes in shares)
    return HEAD + round_up(max([*sizes, *shared]))
