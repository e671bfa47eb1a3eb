"""Launches mul_mat_mma.cu: quantized weights times 9 to 64 columns."""

from __future__ import annotations

import struct

from gguflow.engine.graph import Tensor

from .launch import Call, DeviceInfo, Kernel, Launch, Operand, ceil_div, cpp_type, pack
from .mul_mat_rows import repeated, round_launch

MOST = 64  # columns; beyond them the products of a library are faster
_THREADS, _ROWS, _CHUNK = 256, 128, 256  # as in mul_mat_mma.cu
_COLUMN_BYTES = 2 * _CHUNK + 64
_BLOCKS = 2  # of a multiprocessor, where their stages fit
_WAVES = 2  # of blocks that parts of k may make


def _tiles(m: int) -> int:
    """Groups of eight columns of the kernel used for m."""
    return next(t for t in (2, 4, 8) if 8 * t >= m)


def _stage_bytes(w: Operand, m: int) -> int:
    """`STAGE` of mul_mat_mma.cu."""
    nbytes = _CHUNK // w.dtype.block * w.dtype.nbytes
    copied = nbytes if nbytes % 16 == 0 else ceil_div(nbytes + 15, 16) * 16
    stride = copied if copied // 16 % 2 else copied + 16
    return _ROWS * stride + 8 * _tiles(m) * _COLUMN_BYTES


def _stages(w: Operand, m: int, device: DeviceInfo) -> int:
    """Stages of the ring: 3 or 2 that leave room for `_BLOCKS` blocks, else 2, else 0 for none."""
    stage, most = _stage_bytes(w, m), device.shared_per_block
    beside = (most - 1024 * (_BLOCKS - 1)) // _BLOCKS  # a block's own kilobyte is taken too
    fits = [s for s, room in ((3, beside), (2, beside), (2, most)) if s * stage <= room]
    return fits[0] if fits else 0


def _splits(n: int, k: int, device: DeviceInfo) -> int:
    """Parts of k: enough blocks for the device, of at least two chunks each."""
    wanted = device.sm_count * _BLOCKS * _WAVES // ceil_div(n, _ROWS)
    return max(1, min(k // _CHUNK // 2, wanted))


def _takes(w: Operand, x: Operand, device: DeviceInfo) -> bool:
    nbytes = _CHUNK // w.dtype.block * w.dtype.nbytes
    aligned = 16 if nbytes % 16 == 0 else 2
    return (
        w.dtype.is_quantized
        and w.ne[2] == w.ne[3] == 1
        and w.ne[0] % _CHUNK == 0
        and w.nb[0] == w.dtype.nbytes
        and w.address % aligned == w.nb[1] % aligned == 0
        and x.nb[0] == 4
        and x.rows <= MOST
        and w.ne[1] < 1 << 31
        and _stages(w, x.rows, device) > 0
    )


def applies(node: Tensor, srcs: tuple[Operand | None, ...], device: DeviceInfo) -> bool:
    """Whether `launches` takes this node with these operands (addresses may be zero)."""
    *weights, x = _operands(node, srcs)
    return all(_takes(w, x, device) for w in weights)


def _operands(node: Tensor, srcs: tuple[Operand | None, ...]) -> list[Operand]:
    """The weights, then x."""
    n = 3 if node.op == "mul_mat_swiglu" else 2
    return [s for s in srcs[:n] if s is not None]


def _layout(node: Tensor, srcs: tuple[Operand | None, ...], device: DeviceInfo) -> list[int]:
    """Offsets in scratch memory: [rounded x][a scale a row][parts of each weight's sums][end]."""
    *weights, x = _operands(node, srcs)
    w = weights[0]
    parts = 4 * _splits(w.ne[1], w.ne[0], device) * x.rows * w.ne[1]
    at = [0]
    for nbytes in (2 * x.size, 4 * x.rows, *(parts for _ in weights)):
        at.append(at[-1] + ceil_div(nbytes, 256) * 256)
    return at


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    srcs = tuple(None if s is None else Operand.of(s, 0) for s in node.srcs)
    return _layout(node, srcs, device)[-1] if applies(node, srcs, device) else 0


def launches(call: Call) -> list[Launch]:
    """The launches of a node that `applies`."""
    device = call.device
    *weights, x = _operands(call.node, call.srcs)
    rounded, scales, *parts, _ = (call.scratch + at for at in _layout(call.node, call.srcs, device))
    n, m, k = weights[0].ne[1], x.rows, x.ne[0]
    splits = _splits(n, k, device)
    made = [round_launch("f16", x, rounded, scales, call.node.srcs[len(weights)])]
    for w, to in zip(weights, parts, strict=True):
        stages = _stages(w, m, device)
        args = struct.pack("@3Pq4i", w.address, rounded, to, w.nb[1], n, m, k // _CHUNK, stages)
        kernel = Kernel("mul_mat_mma.cu", f"mul_mat_mma<{cpp_type(w.dtype)}, {_tiles(m)}>")
        # The sums of the second half of each chunk pass through the ring at the end.
        shared = max(stages * _stage_bytes(w, m), 128 * 4 * 8 * _tiles(m))
        grid = (ceil_div(n, _ROWS), splits, 1)
        made.append(Launch(kernel, grid, (_THREADS, 1, 1), args, shared))
    r = call.optional(2) if len(weights) == 1 else None
    if r is not None:
        r = repeated(r, call.dst.ne)
    first, second = (*parts, 0)[:2]
    args = pack(r, struct.pack("@4P3q", call.dst.address, first, second, scales, m, n, splits))
    grid = (ceil_div(n, _THREADS), m, 1)
    return [*made, Launch(Kernel("mul_mat_mma.cu", "sum_parts"), grid, (_THREADS, 1, 1), args)]
