"""Launches of the element-wise template in elementwise.cuh."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from .launch import DeviceInfo, Kernel, Launch, Operand, ceil_div, cpp_type, fast_div, pack

BLOCK = 256
WAVES = 32  # blocks may fill the device so many times over before threads loop instead
PACK_BYTES = 16  # the widest load there is


def n_blocks(n: int, device: DeviceInfo, waves: int = WAVES) -> int:
    """Blocks for n pieces of work, one a thread as long as that fits in so many waves."""
    most = device.sm_count * device.threads_per_sm // BLOCK * waves
    return max(1, min(ceil_div(n, BLOCK), most))


def pack_size(operands: Sequence[Operand]) -> int:
    """Elements a load: 16 bytes of the widest type, or 1 where an address does not allow it."""
    v = PACK_BYTES // max(o.dtype.nbytes for o in operands)
    return v if all(o.address % (v * o.dtype.nbytes) == 0 for o in operands) else 1


def divisors(ne: Sequence[int]) -> bytes:
    """`FastDiv by[3]` for unravelling an index over these extents."""
    return b"".join(fast_div(n) for n in ne[:3])


def is_wide(n: int) -> bool:
    """Whether indices of n elements need 64 bits."""
    return n >= 1 << 31


def map_launch(
    source: str,
    functor: str,
    dst: Operand,
    srcs: Sequence[Operand],
    device: DeviceInfo,
    params: bytes = b"",
    waves: int = WAVES,
) -> list[Launch]:
    """One launch that maps `functor`, whose members are `params`, over tensors of one shape."""
    types = ", ".join([functor, *(cpp_type(o.dtype) for o in (dst, *srcs))])
    n = dst.size
    args = pack(dst, *srcs, struct.pack("@q", n) + divisors(dst.ne) + bytes(4) + params)
    if all(o.is_dense for o in (dst, *srcs)):
        v = pack_size((dst, *srcs))
        kernel = Kernel(source, f"map_dense<{v}, {types}>")
        grid = n_blocks(ceil_div(n, v), device, waves)
    else:
        kernel = Kernel(source, f"map_strided<{'true' if is_wide(n) else 'false'}, {types}>")
        grid = n_blocks(n, device)
    return [Launch(kernel, (grid, 1, 1), (BLOCK, 1, 1), args)]
