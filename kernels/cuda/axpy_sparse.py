"""Launches axpy_sparse.cu: the sum of listed rows, each times its activations."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gguflow.engine.graph import Tensor

from .launch import MAX_GRID_YZ, Call, DeviceInfo, Kernel, Launch, Operand, ceil_div, cpp_type
from .mul_mat_sparse import neurons_of
from .mul_mat_sparse import supports as supports  # the same limit
from .mul_mat_vec import columns_for
from .sparse import FEW, PADDING, List, groups, list_launch

OPS = ("axpy_sparse",)
_THREADS, _SLOTS = 512, 1024  # as in axpy_sparse.cu
_MOST_SHARED = 96 << 10  # bytes of a block's entries: any GPU has them
# Threads that read a row together, 8 columns each. Few make a block's slice narrow, so that blocks
# need not share one; blocks of quantized weights are not cut.
LANES = {"quantized": 32, "f32": 4, "f16": 4, "bf16": 4}


@dataclass(frozen=True)
class Plan:
    """lanes: threads a row; slices and parts: the grid; share: entries of a block at most."""

    lanes: int
    slices: int
    parts: int
    share: int
    shared: int


def plan(w: Operand, columns: int, device: DeviceInfo) -> Plan:
    """How blocks divide the columns and the list for so many activations an entry."""
    n_embd, n_rows = w.ne[:2]
    lanes = LANES["quantized" if w.dtype.is_quantized else w.dtype.name]
    slices = ceil_div(n_embd, 8 * lanes)
    entry = 4 + 4 * columns
    parts = max(1, device.sm_count // slices, ceil_div(n_rows * entry + 16, _MOST_SHARED))
    parts = min(parts, ceil_div(n_rows, 16), PADDING, MAX_GRID_YZ)
    if slices > _SLOTS:
        parts = 1
    share = ceil_div(n_rows, parts)
    sums = _THREADS // 32 * 8 * lanes * 4
    return Plan(
        lanes, slices, parts, share, max(sums, 4 * columns * share + ceil_div(share, 4) * 16)
    )


def parts_bytes(w: Operand, m: int, device: DeviceInfo) -> int:
    """Scratch memory for the sums of blocks that share a slice."""
    columns = columns_for(min(m, FEW))
    p = plan(w, columns, device)
    return 4 * p.parts * columns * w.ne[0] if p.parts > 1 else 0


def axpy_launch(
    w: Operand, on: List, m: int, dst: Operand, parts: int, device: DeviceInfo
) -> Launch:
    """dst [m, n_embd] = the list's rows of w times its activations. parts: address of scratch."""
    columns = columns_for(m)
    p = plan(w, columns, device)
    loose = not w.dtype.is_quantized and bool(w.ne[0] % 8 or w.address % 16 or w.nb[1] % 16)
    kernel = Kernel(
        "axpy_sparse.cu",
        f"axpy_sparse<{cpp_type(w.dtype)}, {str(loose).lower()}, {p.lanes}, {columns}>",
    )
    args = struct.pack(
        "@Pq4PqP3i4x", w.address, w.nb[1], on.count, on.rows, on.h, dst.address, dst.nb[1] // 4,
        parts, w.ne[0], m, p.share,
    )  # fmt: skip
    grid = (p.slices, p.parts, 1)
    return Launch(kernel, grid, (_THREADS, 1, 1), args, p.shared, dependent=True)


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    w = Operand.of(node.live_srcs()[0], 0)
    return List(0, w.ne[1], node.shape[0]).nbytes + parts_bytes(w, node.shape[0], device)


def launches(call: Call) -> list[Launch]:
    w, h, dst = call.src(0), call.src(1), call.dst
    n_rows, m = w.ne[1], h.ne[1]
    on, to = neurons_of(call, 2, n_rows, m), List(call.scratch, n_rows, m)
    made = []
    for t, few in groups(m):
        made += [
            list_launch(on.tokens(t, few), h.shift(t * h.nb[1]), to),
            axpy_launch(
                w, to, few, dst.shift(t * dst.nb[1]), call.scratch + to.nbytes, call.device
            ),
        ]
    return made
