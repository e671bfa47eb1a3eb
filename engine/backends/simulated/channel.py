"""all_reduce between threads: every device has a channel, which the others write into.

A channel has a counter of its device's exchanges, then two halves that exchanges use in turn: of
each device a flag, the number of the exchange, and its part. One that comes to exchange e has the
others' parts of e - 1; so they are done with e - 2, and its half can be written again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from gguflow.engine.backends.base import Reduce
from gguflow.engine.compile import round_up

from .waiting import wait_until

HEAD = 64


def channel_bytes(n_devices: int, sizes: Sequence[int]) -> int:
    """As `Links.channel_bytes`."""
    return HEAD + 2 * n_devices * _slot(sizes)


def all_reduce(part: np.ndarray, r: Reduce) -> np.ndarray:
    """The sum of all devices' parts; zeros once the run was given up."""
    own = r.channels[r.rank]
    counter = ctypes.c_uint32.from_address(own)
    e = counter.value + 1

    def at(channel: int, rank: int) -> int:
        return channel + HEAD + (e % 2 * len(r.channels) + rank) * _slot(r.sizes)

    dense = np.ascontiguousarray(part, np.float32)
    for channel in r.channels:
        slot = at(channel, r.rank)
        ctypes.memmove(slot + HEAD, dense.ctypes.data, dense.nbytes)
        ctypes.c_uint32.from_address(slot).value = e
    total = np.zeros(dense.shape, np.float32)
    for rank in range(len(r.channels)):
        slot = at(own, rank)
        flag = ctypes.c_uint32.from_address(slot)
        if not wait_until(lambda flag=flag: flag.value == e, r):  # type: ignore[misc]
            return total
        found = np.empty_like(dense)
        ctypes.memmove(found.ctypes.data, slot + HEAD, dense.nbytes)
        total = found if rank == 0 else total + found
    counter.value = e
    return total


def _slot(sizes: Sequence[int]) -> int:
    return HEAD + round_up(max(sizes))
