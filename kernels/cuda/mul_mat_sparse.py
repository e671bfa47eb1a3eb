"""Launches mul_mat_sparse.cu: rows of active neurons times a few tokens."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

from gguflow.engine.graph import Tensor

from .launch import Call, DeviceInfo, Kernel, Launch, Operand, ceil_div, cpp_type, register
from .mul_mat_vec import columns_for, plan, takes
from .sparse import FEW, Neurons, Scratch, groups, marked, zero_launch

OPS = ("mul_mat_sparse",)
_SOURCE = "mul_mat_sparse.cu"
_MOST_ROWS = 1 << 18  # bits and a block's share of them lie in shared memory
_MOST_SHARED = 160 << 10  # that axpy_sparse's blocks may start beside
_ANY_BLOCKS = 4  # of a multiprocessor, where rows of any layout are read


def supports(node: Tensor) -> bool:
    return max(s.shape[0] for s in node.live_srcs()) <= _MOST_ROWS


def _round(n: int) -> int:
    return ceil_div(n, 16) * 16


def _own_bytes(n_rows: int, grid: int) -> int:
    """Shared memory of the bits and the block's rows."""
    return _round(4 * ceil_div(n_rows, 32)) + _round(4 * ceil_div(n_rows, grid))


def streams(weights: Sequence[Operand], x: Operand, n_rows: int, device: DeviceInfo) -> bool:
    """Whether the rows are streamed through shared memory, and not read by any layout."""
    own = _own_bytes(n_rows, max(1, min(device.sm_count, n_rows)))
    room = replace(device, shared_per_block=device.shared_per_block - own)
    return weights[0].dtype is weights[-1].dtype and takes(x, weights, x, room)


def rows_launch(
    kind: str,
    weights: Sequence[Operand],
    x: Operand,
    on: Neurons,
    device: DeviceInfo,
    *,
    h: int = 0,
    dst: Operand | None = None,
    relu_up: bool = False,
    norm: Operand | None = None,
    eps: float = 0.0,
    cut: float = 0.0,
    bias: Operand | None = None,
) -> Launch:
    """kind GATED: weights gate and up, activations by place in the list go to address h. TIMES:
    weight up, the gate is `on.idx`. ALONE: weight up and a bias by neuron. SCATTER: one weight,
    results to `dst`. CUT_GATED, CUT_TIMES: with a cut, which ALONE has too. norm: of x, only where
    `streams` says so."""
    first, last = weights[0], weights[-1]
    grid = max(1, min(device.sm_count, on.n_rows))
    share, c = ceil_div(on.n_rows, grid), columns_for(on.m)
    own = _own_bytes(on.n_rows, grid)
    most = min(device.shared_per_block, _MOST_SHARED)
    if not takes(x, weights, x, replace(device, shared_per_block=most - own)):
        most = device.shared_per_block
    room = replace(device, shared_per_block=most - own)
    fast = streams(weights, x, on.n_rows, device)
    threads, stages, shared = 256, 0, own
    if fast:
        warps, stages, shared = plan(weights, x.ne[0], on.m, 0, room, may_be_wide=False)
        threads, shared = 32 * warps, shared + own
        entry = f"sparse_rows<{kind}, {cpp_type(first.dtype)}, {c}>"
    else:
        types = f"{cpp_type(first.dtype)}, {cpp_type(last.dtype)}"
        entry = f"sparse_rows_any<{kind}, {types}, {1 if c == 1 else FEW}>"
        grid = max(1, min(_ANY_BLOCKS * device.sm_count, ceil_div(on.n_rows, 8)))
        share, shared = ceil_div(on.n_rows, grid), _own_bytes(on.n_rows, grid)
    args = on.pack() + struct.pack(
        "@2P2qPqPPq5ifPf4x", first.address, last.address, first.nb[1], last.nb[1], x.address,
        x.nb[1] // 4, norm.address if norm else 0, dst.address if dst else h,
        dst.nb[1] // 4 if dst else 0, x.ne[0], c, stages, relu_up, share, eps,
        bias.address if bias else 0, cut,
    )  # fmt: skip
    kernel = Kernel(_SOURCE, entry)
    return Launch(kernel, (grid, 1, 1), (threads, 1, 1), args, shared, dependent=fast)


def neurons_of(call: Call, first: int, n_rows: int, m: int) -> Neurons:
    """The neurons that a node's optional operands from number `first` on tell."""
    idx, bucket, gpu_idx = (call.optional(first + i) for i in range(3))
    return Neurons(idx, bucket, gpu_idx, call.node.params["threshold"], n_rows, m)


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    return Scratch(0, node.live_srcs()[0].shape[0], node.shape[0]).end


def launches(call: Call) -> list[Launch]:
    w, x, dst, device = call.src(0), call.src(1), call.dst, call.device
    m, n_rows = x.ne[1], w.ne[1]
    on, scratch = neurons_of(call, 2, n_rows, m), Scratch(call.scratch, n_rows, m)
    made = [zero_launch(dst, device.sm_count)]
    for t, few in groups(m):
        some = x.shift(t * x.nb[1], (x.ne[0], few, 1, 1))
        to = dst.shift(t * dst.nb[1], (dst.ne[0], few, 1, 1))
        first, wanted = marked(on.tokens(t, few), scratch.marks)
        made += [*first, rows_launch("SCATTER", [w], some, wanted, device, dst=to)]
    return made


register(OPS, launches, supports=supports, scratch_bytes=scratch_bytes)
