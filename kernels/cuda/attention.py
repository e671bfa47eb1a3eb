"""Launches attention: attention_decode.cu for few tokens, attention_prefill.cu for many, and
attention.cu for the head sizes, types and layouts these two do not take.

A row below is a (token, head) of those that read one KV head. Grids depend on shapes alone; which
part of the cache is visible, kernels read from the positions.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gguflow.engine.graph import Tensor, op_spec

from .launch import (
    MAX_GRID_YZ,
    Call,
    DeviceInfo,
    Dim3,
    Kernel,
    Launch,
    Operand,
    ceil_div,
    cpp_type,
    fast_div,
    pack,
)

OPS = ("attention",)
WARPS = 8  # of attention.cu and attention_decode.cu
PER_LANE = (2, 4, 8, 16)  # elements of a head that a lane of attention.cu may hold
CHUNK = 128  # keys a split's block takes at a time
MAX_SPLITS, MAX_TICKETS = 128, 1024  # of a slot, and slots
HEAD_SIZES = (64, 128)  # of the tensor-core kernels
DECODE_ROWS = 64  # up to here the work is reading the cache, beyond it the products
PREFILL_ROWS, PREFILL_KEYS, PREFILL_THREADS = 128, (128, 64), 256


@dataclass(frozen=True)
class Plan:
    """A launch without its addresses. rows: of a slot, which is what splits share."""

    name: str
    entry: str
    grid: Dim3
    threads: int
    shared: int = 0
    splits: int = 1
    rows: int = 1

    def parts_bytes(self, width: int) -> int:
        """Scratch for what splits pass on: float sums, with two more floats a row."""
        if self.splits == 1:
            return 0
        blocks = self.grid[0] * self.grid[1] * self.grid[2]
        return 4 * blocks * self.rows * (width + 2)


def _splits(device: DeviceInfo, slots: int, n_ctx: int) -> int:
    """As many as keep every multiprocessor busy with one block."""
    if slots > MAX_TICKETS:
        return 1
    return max(1, min(device.sm_count // slots, ceil_div(n_ctx, CHUNK), MAX_SPLITS))


def _any(device: DeviceInfo, q: Operand, k: Operand, v: Operand) -> Plan:
    per_lane = next(n for n in PER_LANE if 32 * n >= max(q.ne[0], v.ne[0]))
    entry = f"attention<{cpp_type(k.dtype)}, {cpp_type(v.dtype)}, {per_lane}>"
    splits = _splits(device, q.ne[1] * q.ne[2], k.ne[2])
    return Plan("attention", entry, (q.ne[1], q.ne[2], splits), 32 * WARPS, splits=splits)


def _tensor_cores(device: DeviceInfo, q: Operand, k: Operand, v: Operand) -> Plan | None:
    """The plan for head sizes and types that the tensor-core kernels take."""
    types = {k.dtype.name, v.dtype.name}
    hd, n_kv_head = k.ne[0], k.ne[1]
    if hd not in HEAD_SIZES or v.ne[0] != hd or not (types <= {"f16", "q8_0"} or types == {"bf16"}):
        return None
    args = f"{cpp_type(k.dtype)}, {cpp_type(v.dtype)}, {hd}"
    rows = q.ne[1] // n_kv_head * q.ne[2]
    if rows <= DECODE_ROWS:
        tile = 8 if rows <= 8 else 16
        tiles = ceil_div(rows, tile)
        splits = _splits(device, n_kv_head * tiles, k.ne[2])
        shared = 4 * WARPS * tile * (hd + 2)
        entry, grid = f"attention_decode<{args}, {tile // 8}>", (n_kv_head, splits, tiles)
        return Plan("attention_decode", entry, grid, 32 * WARPS, shared, splits, tile)
    tiles = ceil_div(rows, PREFILL_ROWS)
    room = device.shared_per_block - 1024  # for what kernels declare themselves
    for keys in PREFILL_KEYS:
        shared = 2 * hd * (PREFILL_ROWS + 4 * keys)
        if shared <= room and tiles <= MAX_GRID_YZ:
            entry, grid = f"attention_prefill<{args}, {keys}>", (n_kv_head, tiles, 1)
            return Plan("attention_prefill", entry, grid, PREFILL_THREADS, shared)
    return None


def _wide_loads(o: Operand) -> bool:
    """Whether the tensor-core kernels' loads are aligned (q8_0 is read by two bytes)."""
    step = 2 if o.dtype.is_quantized else 16
    return not (o.address % step or o.nb[1] % step or o.nb[2] % step)


def supports(node: Tensor) -> bool:
    q = node.live_srcs()[0]
    widest = max(q.shape[2], node.shape[2])
    return widest <= 32 * PER_LANE[-1] and q.shape[0] <= MAX_GRID_YZ


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    q, k, v = (Operand.of(t, 0) for t in node.live_srcs()[:3])
    plans = (_any(device, q, k, v), _tensor_cores(device, q, k, v))
    return max(p.parts_bytes(v.ne[0]) for p in plans if p is not None)


def launches(call: Call) -> list[Launch]:
    q, k, v, pos = (call.src(i) for i in range(4))
    plan = _tensor_cores(call.device, q, k, v)
    if plan is None or not all(_wide_loads(o) for o in (q, k, v, call.dst)):
        plan = _any(call.device, q, k, v)
    numbers = op_spec("attention").pack_params(call.node.params)
    numbers += struct.pack("@P", call.scratch) + fast_div(q.ne[1] // k.ne[1])
    numbers += struct.pack("@i", plan.splits)
    args = pack(call.dst, q, k, v, pos, numbers)
    code = Kernel(f"{plan.name}.cu", plan.entry)
    return [Launch(code, plan.grid, (plan.threads, 1, 1), args, plan.shared, dependent=True)]
