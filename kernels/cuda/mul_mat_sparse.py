"""Launches mul_mat_sparse.cu: rows of active neurons times a few tokens."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

from gguflow.engine.graph import Tensor

from .launch import Call, DeviceInfo, Kernel, Launch, Operand, ceil_div, cpp_type
from .mul_mat_vec import columns_for, plan, takes
from .sparse import FEW, List, Neurons, groups, marked, zero_launch

OPS = ("mul_mat_sparse",)
_SOURCE = "mul_mat_sparse.cu"
_MOST_ROWS = 1 << 18  # bits and a block's share of them lie in shared memory
_ANY_BLOCKS = 4  # of a multiprocessor, where rows of any layout are read


def supports(node: Tensor) -> bool:
    return node.live_srcs()[0].shape[0] <= _MOST_ROWS


def _round(n: int) -> int:
    return ceil_div(n, 16) * 16


def rows_launch(
    kind: str,
    weights: Sequence[Operand],
    x: Operand,
    on: Neurons,
    device: DeviceInfo,
    *,
    to: List | None = None,
    dst: Operand | None = None,
    relu_up: bool = False,
    following: Operand | None = None,
) -> Launch:
    """kind GATED: weights gate and up, the list and its activations go to `to`. TIMES: weight up,
    the gate is `on.idx`. SCATTER: one weight, results to `dst`. following: the rows that the next
    kernel reads of the list."""
    first, last = weights[0], weights[-1]
    grid = max(1, min(device.sm_count, on.n_rows))
    share, c = ceil_div(on.n_rows, grid), columns_for(on.m)
    own = _round(4 * on.words) + _round(4 * share)
    room = replace(device, shared_per_block=device.shared_per_block - own)
    result = dst if dst is not None else x
    fast = first.dtype is last.dtype and takes(result, weights, x, room)
    threads, stages, shared = 256, 0, own
    if fast:
        warps, stages, shared = plan(weights, x.ne[0], on.m, 0, room)
        threads, shared = 32 * warps, shared + own
        entry = f"sparse_rows<{kind}, {cpp_type(first.dtype)}, {c}>"
    else:
        types = f"{cpp_type(first.dtype)}, {cpp_type(last.dtype)}"
        entry = f"sparse_rows_any<{kind}, {types}, {1 if c == 1 else FEW}>"
        grid = max(1, min(_ANY_BLOCKS * device.sm_count, ceil_div(on.n_rows, 8)))
        share = ceil_div(on.n_rows, grid)
        shared = _round(4 * on.words) + _round(4 * share)
    near = following if following is not None and _copied_whole(following) else None
    args = on.pack() + struct.pack(
        "@2P2qPq3PqPq5i4x", first.address, last.address, first.nb[1], last.nb[1], x.address,
        x.nb[1] // 4, to.count if to else 0, to.rows if to else 0,
        to.h if to else dst.address if dst else 0, dst.nb[1] // 4 if dst else 0,
        near.address if near else 0, near.nb[1] if near else 0, x.ne[0], c, stages, relu_up, share,
    )  # fmt: skip
    kernel = Kernel(_SOURCE, entry)
    return Launch(kernel, (grid, 1, 1), (threads, 1, 1), args, shared, dependent=fast)


def _copied_whole(w: Operand) -> bool:
    """Whether the rows of w follow each other and start at multiples of 16 bytes."""
    row = w.ne[0] // w.dtype.block * w.dtype.nbytes
    return w.nb[1] == row and row % 16 == 0 and w.address % 16 == 0


def neurons_of(call: Call, first: int, n_rows: int, m: int) -> Neurons:
    """The neurons that a node's optional operands from number `first` on tell."""
    idx, bucket, gpu_idx = (call.optional(first + i) for i in range(3))
    return Neurons(idx, bucket, gpu_idx, call.node.params["threshold"], n_rows, m)


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    return List(0, node.live_srcs()[0].shape[0], node.shape[0]).nbytes


def launches(call: Call) -> list[Launch]:
    w, x, dst, device = call.src(0), call.src(1), call.dst, call.device
    m, n_rows = x.ne[1], w.ne[1]
    on, scratch = neurons_of(call, 2, n_rows, m), List(call.scratch, n_rows, m)
    made = [zero_launch(dst, device.sm_count)]
    for t, few in groups(m):
        some = x.shift(t * x.nb[1], (x.ne[0], few, 1, 1))
        to = dst.shift(t * dst.nb[1], (dst.ne[0], few, 1, 1))
        first, wanted = marked(on.tokens(t, few), scratch.marks)
        made += [*first, rows_launch("SCATTER", [w], some, wanted, device, dst=to)]
    return made
