"""Launches all_reduce.cu: sums of parts, of one device or exchanged between several.

A device has a channel, into which the others write: a count of exchanges for every block; then room
for small parts, where every 4 bytes have the exchange's number beside them as a flag; then for
large ones, all zeros but between the sending and the taking of a piece (sent_words.cuh). There are
two of all, used in turn: who comes to exchange e has what the others sent for e - 1, so they are
done with e - 2. All plans of a runner use it, laid out for the largest of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from .elementwise import cpp_bool
from .launch import Call, Kernel, Launch, RoundedNorm, ceil_div, pack, register

OPS = ("all_reduce", "all_reduce_add")
DEVICES = 8  # kDevices of all_reduce.cu
COUNTERS = 256  # kCounters: of blocks
HEAD = 4 * COUNTERS
PIECE = 16 << 10  # bytes of a part: kPieceWords of 16
SMALL = 512 << 10  # bytes that come to a device, up to which flags beside the data are sooner there
BLOCK = 256  # kBlock
SHARED_BLOCKS = 128  # of all streams of one GPU together, see `most_blocks`
ROW = 8192  # elements of a row whose norm is made too
LINE = 8  # bytes of a part in a 16-byte word with its flags

SMALL_PARTS, LARGE_PARTS = (
    Kernel("all_reduce.cu", name) for name in ("all_reduce_small", "all_reduce_large")
)


def launches(call: Call) -> list[Launch]:
    """Parts that the device reaches, added where they are, and a residual last."""
    parts = [s.address for s in call.srcs if s is not None]
    if call.node.op == "all_reduce_add":
        parts = [*parts[1:], parts[0]]
    args = struct.pack(
        f"@{DEVICES + 2}Pqi", *parts, *(0,) * (DEVICES + 1 - len(parts)), call.dst.address,
        call.dst.size, len(parts),
    )  # fmt: skip
    grid = (min(ceil_div(call.dst.size, BLOCK), 1024), 1, 1)
    return [Launch(Kernel("all_reduce.cu", "add_parts"), grid, (BLOCK, 1, 1), pack(args),
                   dependent=True)]  # fmt: skip


def channel_bytes(n_devices: int, sizes: Sequence[int]) -> int:
    """Of a device's channel for parts of these sizes."""
    *_, end = _layout(n_devices, sizes)
    return end


def exchange(
    to: int,
    part: int,
    residual: int,
    nbytes: int,
    rank: int,
    channels: Sequence[int],
    sizes: Sequence[int],
    shared: bool,
    given_up: int,
    code: int,
    timeout_ns: int,
    norm: RoundedNorm | None = None,
) -> Launch:
    """A device's part of `nbytes` and those of the others, added in the order of the ranks.

    to, part, residual (added in the end, 0 for none): addresses, multiples of 16, of memory in
    multiples of 64 bytes. channels: of all devices, by rank. sizes: of all parts that go over these
    channels. shared: another of the devices may be a stream of the same GPU. given_up, code,
    timeout_ns: as of a `Flag`. norm: what is made of the result's rows too, where `makes_norms`.
    """
    n = len(channels)
    small, large, _ = _layout(n, sizes)
    is_small = _is_small(n, nbytes)
    units = ceil_div(nbytes, LINE if is_small else PIECE)
    args = struct.pack(
        f"@{DEVICES + 4}P4qI3i", *channels, *(0,) * (DEVICES - n), part, residual, to, given_up,
        timeout_ns, nbytes, small if is_small else large, _stride(sizes, n, is_small), code, rank,
        n, not shared,
    )  # fmt: skip
    blocks = min(ceil_div(units, BLOCK) if is_small else units, most_blocks(n, shared))
    if norm is not None:
        return _with_norm(args, norm, nbytes // (4 * norm.d), blocks)
    kernel = SMALL_PARTS if is_small else LARGE_PARTS
    grid = (blocks, 1, 1)
    return Launch(kernel, grid, (BLOCK, 1, 1), pack(args), dependent=True)


def makes_norms(n_devices: int, nbytes: int, d: int) -> bool:
    """Whether an exchange of parts of `nbytes`, rows of d elements that are added to a residual,
    may make the norm of the rows too."""
    return n_devices == 2 and not _is_small(n_devices, nbytes) and d % 8 == 0 and d <= ROW


def _with_norm(args: bytes, norm: RoundedNorm, m: int, blocks: int) -> Launch:
    """Of m rows; args: a ReduceArgs."""
    block = 512 if norm.d <= 4096 else 1024
    each, scaled = ceil_div(norm.d, 8 * block), norm.to.dtype == "f16"
    args += struct.pack(
        "@3Pf2i4x", norm.weights, norm.to.address, norm.to.scales, norm.eps, m, norm.d
    )  # fmt: skip
    entry = f"all_reduce_rounded<{norm.to.dtype}, {cpp_bool(scaled)}, {block}, {each}>"
    grid = (min(m, blocks), 1, 1)
    return Launch(Kernel("all_reduce_rounded.cu", entry), grid, (block, 1, 1), args, dependent=True)


def most_blocks(n_devices: int, shared: bool) -> int:
    """Of an exchange. Those of streams of one GPU that wait for each other must not keep one from
    running, and neither must those of what follows them."""
    return SHARED_BLOCKS // n_devices if shared else COUNTERS


def _is_small(n_devices: int, nbytes: int) -> bool:
    return nbytes * (n_devices - 1) <= SMALL


def _most(n_devices: int, sizes: Sequence[int]) -> tuple[int, int]:
    """Bytes of the largest small part and of the largest other, in whole pieces. Who has a large
    one has small ones too, in plans of fewer rows that use the same channel."""
    most = max(sizes, default=0)
    small = min(most, SMALL // max(n_devices - 1, 1))
    large = 0 if _is_small(n_devices, most) else most
    return ceil_div(small, 64) * 64, ceil_div(large, PIECE) * PIECE


def _stride(sizes: Sequence[int], n_devices: int, is_small: bool) -> int:
    """Bytes from one device's room to the next one's."""
    small, large = _most(n_devices, sizes)
    return 2 * small if is_small else large


def _layout(n_devices: int, sizes: Sequence[int]) -> tuple[int, int, int]:
    """Where small parts and large ones begin in a channel, and its end. A large part has as many
    rooms as there are devices, and one for what is added up."""
    small, large = _most(n_devices, sizes)
    at_large = HEAD + 2 * n_devices * 2 * small
    end = at_large + 2 * (n_devices + 1) * large
    return HEAD, at_large, ceil_div(end, 256) * 256


register(OPS, launches)
