"""Device time of work put into the stream, by events around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gguflow.engine.graph import Tensor
from gguflow.kernels.cuda.launch import Call, DeviceInfo, Kernel, Launch, Operand, launches

from .device import CudaDevice

Work = Callable[[], Any]  # puts something into the device's stream


def elapsed_us(device: CudaDevice, work: Work) -> float:
    """Microseconds of one go that follows another: the device does not wait for the host then."""
    return _bracketed(device, work, work, 1)[0]


def time_cold(device: CudaDevice, work: Work, flush: Work, repeats: int) -> list[float]:
    """Microseconds of each of `repeats` goes, `flush` before each.

    It runs twice, so that the device is still at it when the host has put `work` into the stream,
    and never waits between the events. What two events cost with nothing between them is taken off.
    """

    def before() -> None:
        flush()
        flush()

    empty = float(np.median(_bracketed(device, lambda: None, before, repeats)))
    return [max(us - empty, 0.0) for us in _bracketed(device, work, before, repeats)]


def kernels(nodes: Sequence[Tensor], info: DeviceInfo) -> Iterator[Kernel]:
    """The kernels of nodes whose operands will lie at the start of buffers of their own."""
    address = 1 << 40  # as aligned as any buffer
    for n in nodes:
        srcs = tuple(None if s is None else Operand.of(s, address + s.view_offset) for s in n.srcs)
        dst = Operand.of(n, address + n.view_offset)
        for launch in launches(Call(n, dst, srcs, info, address)):
            if isinstance(launch, Launch):
                yield launch.kernel


def _bracketed(device: CudaDevice, work: Work, before: Work, repeats: int) -> list[float]:
    cuda, stream = device.cupy.cuda, device.stream
    device.use()
    pairs = [(cuda.Event(), cuda.Event()) for _ in range(repeats)]
    for begin, end in pairs:
        before()
        begin.record(stream)
        work()
        end.record(stream)
    device.synchronize()
    return [cuda.get_elapsed_time(begin, end) * 1e3 for begin, end in pairs]
