"""Launches of the element-wise template in elementwise.cuh."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from .collapse import collapse
from .launch import DeviceInfo, Kernel, Launch, Operand, ceil_div, cpp_type, fast_div, pack

BLOCK = 256
WAVES = 64  # blocks may fill the device so many times over before threads loop instead
PACK_BYTES = 16  # the widest load there is


def n_blocks(n: int, device: DeviceInfo, waves: int = WAVES) -> int:
    """Blocks for n pieces of work, one a thread as long as that fits in so many waves."""
    most = device.sm_count * device.threads_per_sm // BLOCK * waves
    return max(1, min(ceil_div(n, BLOCK), most))


def pack_size(operands: Sequence[Operand]) -> int:
    """Elements a load: 16 bytes of the widest type, or 1 where an address does not allow it."""
    v = PACK_BYTES // max(o.dtype.nbytes for o in operands)
    return v if all(o.address % (v * o.dtype.nbytes) == 0 for o in operands) else 1


def row_pack(operands: Sequence[Operand]) -> int:
    """Elements a load of operands whose rows are whole packs; 1 where they are not."""
    v = pack_size(operands)
    rows = all(o.nb[0] == o.dtype.nbytes and o.ne[0] % v == 0 for o in operands)
    steps = (s % (v * o.dtype.nbytes) for o in operands for s in o.nb[1:])
    return v if rows and not any(steps) else 1


def divisors(ne: Sequence[int]) -> bytes:
    """`FastDiv by[3]` for unravelling an index over these extents."""
    return b"".join(fast_div(n) for n in ne[:3])


def is_wide(n: int) -> bool:
    """Whether indices of n elements need 64 bits."""
    return n >= 1 << 31


def cpp_bool(value: bool) -> str:
    return "true" if value else "false"


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
    dst, *srcs = collapse(dst, *srcs)
    dense = all(o.is_dense for o in (dst, *srcs))
    v = pack_size((dst, *srcs)) if dense else row_pack((dst, *srcs))
    packs = ceil_div(dst.size, v)
    n = dst.size if dense else packs
    by = divisors((dst.ne[0] // v, *dst.ne[1:]))
    functor_bytes = params or bytes(1)  # a struct without members has one byte
    args = pack(dst, *srcs, struct.pack("@q", n) + by + bytes(4) + functor_bytes)
    entry = f"map_dense<{v}, {types}>" if dense else (
        f"map_strided<{cpp_bool(is_wide(n))}, {v}, {types}>"
    )  # fmt: skip
    grid = n_blocks(packs, device, waves)
    return [Launch(Kernel(source, entry), (grid, 1, 1), (BLOCK, 1, 1), args, dependent=True)]
