"""Seconds of work on a machine.

An op takes the time of its bytes and that of its operations, one after the other, and a constant
beside. A maximum of the two, as in a roofline, is what a kernel could reach: on the GPU that was
measured, 16 to 128 sequences take the sum.
"""

from __future__ import annotations

from .machine import Machine
from .work import RunWork, Work

# Bytes that come to a device, up to which every device sends its part to all others at once: SMALL
# of kernels/cuda/all_reduce.py, which a forecast does not import.
ONE_SHOT = 512 << 10


def compute_seconds(work: Work, m: Machine) -> float:
    """Of one device's share of a layer, exchanges left out."""
    rates = {"f32": m.f32_tflops, "f16": m.f16_tflops, "quant": m.quant_tflops}
    computing = sum(n / (1e12 * rates[kind]) for kind, n in work.flops.items())
    reading = work.read / (1e9 * m.read_gbs)
    beside = m.kernel_us * work.kernels + m.many_us * work.many + m.small_us * work.small
    writing = work.written / (1e9 * m.link_gbs)
    return max(reading + computing, writing) + 1e-12 * m.unpack_ps * work.unpacked + 1e-6 * beside


def exchange_seconds(nbytes: int, n_devices: int, m: Machine) -> float:
    """Of a sum of n_devices parts of nbytes each, until every device has it.

    It is the measured curve of two devices at the bytes that arrive. Up to ONE_SHOT every part
    does; of what is beyond, one of more than two devices adds a piece for all, so that of each byte
    2 (n - 1) / n cross.
    """
    if n_devices < 2:
        return 0.0
    small = min((n_devices - 1) * nbytes, ONE_SHOT)
    beyond = nbytes - small / (n_devices - 1)
    crossing = 2 * (n_devices - 1) / n_devices * beyond
    return 1e-6 * _interpolated(small + crossing, m)


def hop_seconds(nbytes: int, m: Machine) -> float:
    """Of a value from one device of a host to the next."""
    return 1e-6 * m.hop_us + nbytes / (1e9 * m.link_gbs)


def wire_seconds(nbytes: int, m: Machine) -> float:
    """Of a value from one machine to the next."""
    return 1e-6 * m.wire_us + nbytes / (1e9 * m.wire_gbs)


def layer_seconds(run: RunWork, m: Machine) -> list[float]:
    """Of each layer of a run, and of what comes before and after them: its slowest device, and
    the exchanges for which the devices wait for each other."""
    times = []
    for shares in run.layers:
        slowest = max(compute_seconds(w, m) for w in shares)
        times.append(slowest + max(_waits(w, run.n_devices, m) for w in shares))
    return times


def _waits(w: Work, n_devices: int, m: Machine) -> float:
    """Seconds that a device waits for others in a layer."""
    sums = sum(k * exchange_seconds(n, n_devices, m) for n, k in w.exchanges.items())
    shared = sum(k * 1e-6 * _interpolated(n, m) for n, k in w.shared.items())
    n_sums = sum(w.exchanges.values()) + sum(w.shared.values())
    return sums + shared + 1e-6 * m.apart_us * n_sums + sum(hop_seconds(n, m) for n in w.crossed)


def _interpolated(nbytes: float, m: Machine) -> float:
    """Microseconds on the curve of two devices. Below it the first point's time: latency rules
    there. Above it the last two points' rate, or the link's where that is less."""
    points = m.exchange
    if not points:
        return 0.0
    if nbytes <= points[0][0]:
        return points[0][1]
    for (a, s), (b, t) in zip(points, points[1:], strict=False):
        if nbytes <= b:
            return s + (t - s) * (nbytes - a) / (b - a)
    b, t = points[-1]
    slope = 1e-3 / m.link_gbs
    if len(points) > 1:
        a, s = points[-2]
        slope = max(slope, (t - s) / (b - a))
    return t + (nbytes - b) * slope
