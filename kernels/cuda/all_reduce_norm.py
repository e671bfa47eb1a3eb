"""Launches all_reduce_norm.cu: sums on a residual whose rows devices share, and their norms.

In a device's channel (all_reduce.py), behind what other exchanges use, there is room for what each
other device sends: of sums of the own rows, and of norms of its rows. There are two of all, used in
turn, all zeros but between the sending and the taking of what they are for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from gguflow.engine.graph import Tensor

from . import all_reduce
from .all_reduce import DEVICES, most_blocks
from .launch import Call, Kernel, Launch, Rounded, ceil_div, register

OPS = ("all_reduce_norm",)
# From more on shared rows are sooner there: where products take them in 16 bits, as those with
# 16-bit weights do from fewer on (mul_mat_tma.cu).
ROWS, ROWS_OF_FLOATS = 256, 64
ELEMENTS = 8192  # of a row, at most
# Threads of a block, and words of four elements that each of them may have of a row.
_BLOCKS = (256, 1), (256, 2), (256, 4), (512, 4)
_SCALE = 16  # bytes behind a row, for its scale
_ALIGN = 256  # of 16-bit rows, as a library likes them
Shares = Sequence[tuple[int, int]]  # of exchanges: rows of the largest share, bytes of a row


def shares_rows(m: int, d: int, floats: bool, equal_bits: bool = False) -> bool:
    """Whether the kernel takes sums of so many rows of so many elements, and is sooner done.
    floats: whether their norms are for products with 16-bit weights alone.

    Its norms have the bits of norm.cu, as those before a library's products; with equal_bits
    products of any number of columns may begin with a norm of their own.
    """
    least = ROWS_OF_FLOATS if floats else ROWS
    return not equal_bits and m > least and d % 8 == 0 and d <= ELEMENTS


def supports(node: Tensor) -> bool:
    return node.shape[1] % 4 == 0 and node.shape[1] <= ELEMENTS


def rounded(dtype: str, address: int, m: int, d: int) -> Rounded:
    """Where the norms of m rows are as `dtype`, in the memory of a result at `address`."""
    at = ceil_div(address, _ALIGN) * _ALIGN
    return Rounded(dtype, at, at + 2 * m * d if dtype == "f16" else 0)


def launches(call: Call) -> list[Launch]:
    """All parts, and all rows of the residual, where the device reaches them."""
    given = [s.address for s in call.srcs[1:] if s is not None]
    w, shape = call.optional(0), call.src(2).ne
    shares = [s.ne[1] for s in call.srcs[1::2] if s is not None]
    m, d = shape[1], shape[0]
    to = call.dst.address
    args = _rows(given[1::2], given[::2], w.address if w else 0, to, 0, to + 4 * m * d, shares,
                 call.node.params["rank"], d, call.node.params["eps"])  # fmt: skip
    block, words = _block(d)
    kernel = Kernel("all_reduce_norm.cu", f"add_norm<{block}, {words}>")
    return [Launch(kernel, (m, 1, 1), (block, 1, 1), _padded(args), dependent=True)]


def channel_bytes(n_devices: int, sizes: Sequence[int], shares: Shares) -> int:
    """Of a device's channel for sums of parts of these sizes, and for shared ones."""
    return _layout(n_devices, sizes, shares).end


def whole_sizes(sizes: Sequence[int], shares: Shares) -> list[int]:
    """Of parts that are sent whole over such a channel: plans of fewer rows send theirs so."""
    return [*sizes, *(ROWS * nbytes for _, nbytes in shares)]


@dataclass(frozen=True)
class Sides:
    """Of an exchange, what all its devices know alike.

    channels: of all devices, by rank. sizes, shares: of all exchanges that go over these channels.
    shared: another of the devices may be a stream of the same GPU. given_up, code, timeout_ns: as
    of a `Flag`.
    """

    channels: Sequence[int]
    sizes: Sequence[int]
    shares: Shares
    shared: bool
    given_up: int
    code: int
    timeout_ns: int


def exchange(
    to: int,
    part: int,
    residual: int,
    w: int,
    eps: float,
    d: int,
    rows: Sequence[int],
    rank: int,
    dtype: str,
    sides: Sides,
) -> Launch:
    """One device's side: the sums of its rows, and the norms of all.

    to, part, residual: addresses, multiples of 16. w: the norm's weights, 0 for none. rows: of the
    residual that each device has. dtype: what the norms become (see `rounded`), "f32" for sums.
    """
    n, m = len(rows), sum(rows)
    at = _layout(n, sides.sizes, sides.shares)
    place = rounded(dtype, to, m, d) if dtype != "f32" else Rounded(dtype, to, 0)
    args = _rows([part if k == rank else 0 for k in range(n)],
                 [residual if k == rank else 0 for k in range(n)], w, place.address, place.scales,
                 to + 4 * m * d, rows, rank, d, eps)  # fmt: skip
    args += struct.pack(
        f"@{DEVICES + 1}P6qI2i", *sides.channels, *(0,) * (DEVICES - n), sides.given_up,
        sides.timeout_ns, at.sums, at.norms, at.sums_stride, at.norms_stride, 4 * d + _SCALE,
        sides.code, max(rows), not sides.shared,
    )  # fmt: skip
    block, words = _block(d)
    kernel = Kernel("all_reduce_norm.cu", f"all_reduce_norm<{dtype}, {block}, {words}>")
    grid = (min(max(rows), most_blocks(n, sides.shared)), 1, 1)
    return Launch(kernel, grid, (block, 1, 1), _padded(args), dependent=True)


def _block(d: int) -> tuple[int, int]:
    return next((b, w) for b, w in _BLOCKS if d <= 4 * b * w)


def _padded(args: bytes) -> bytes:
    return args + bytes(-len(args) % 16)


def _rows(
    parts: Sequence[int],
    residuals: Sequence[int],
    w: int,
    to: int,
    scales: int,
    own: int,
    rows: Sequence[int],
    rank: int,
    d: int,
    eps: float,
) -> bytes:
    """A RowsArgs."""
    n = len(rows)
    none = (0,) * (DEVICES - n)
    bounds = [sum(rows[:k]) for k in range(n + 1)]
    return struct.pack(
        f"@{2 * DEVICES + 4}P{DEVICES + 4}if4x", *parts, *none, *residuals, *none, w, to, scales,
        own, *bounds, *none, rank, n, d, eps,
    )  # fmt: skip


@dataclass(frozen=True)
class _Layout:
    sums: int
    norms: int
    sums_stride: int
    norms_stride: int
    end: int


def _layout(n_devices: int, sizes: Sequence[int], shares: Shares) -> _Layout:
    """Where the rooms begin in a channel, how far they are apart, and the channel's end."""
    sums = max((rows * nbytes for rows, nbytes in shares), default=0)
    norms = max((rows * (nbytes + _SCALE) for rows, nbytes in shares), default=0)
    sums, norms = (ceil_div(x, 256) * 256 for x in (sums, norms))
    at = all_reduce.channel_bytes(n_devices, whole_sizes(sizes, shares))
    at_norms = at + 2 * n_devices * sums
    return _Layout(at, at_norms, sums, norms, at_norms + 2 * n_devices * norms)


register(OPS, launches, supports=supports)
