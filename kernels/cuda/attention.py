"""Launches attention: attention_decode.cu for tokens that are alone in their sequence and for few
others, attention_prefill.cu for many, and attention.cu for the head sizes, types and layouts these
two do not take.

A row below is a (token, head) of those that read one KV head. Grids depend on shapes alone; which
part of the cache is visible, kernels read from the positions.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import gcd

from gguflow.engine.graph import DType, Tensor, op_spec
from gguflow.engine.plan_key import PAGE

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
KEYS = 16  # of them, a warp
FEW_HALVES, LISTED_HALVES = 4, 2  # groups of keys or of values that a warp has on their way
PIECE = 8  # chunks that a block of a long list takes together
MAX_SPLITS, MAX_TICKETS = 128, 8192  # of a slot, and slots
LISTED = 256  # tokens that are alone in their sequence, of a launch
HEAD_SIZES = (64, 128)  # of the tensor-core kernels
DECODE_ROWS = 64  # up to here the work is reading the cache, beyond it the products
PREFILL_ROWS, PREFILL_KEYS, PREFILL_THREADS = 128, (128, 64), 256
STATIC = 2 << 10  # shared memory that the other kernels declare themselves, at most
LISTED_STATIC = 9 << 10  # the same of attention_decode_listed


@dataclass(frozen=True)
class Plan:
    """A launch without its addresses, of `n` tokens from `begin` on.

    slots: what blocks may share, of `rows` each, in `splits` splits. piece: chunks that a block
    of a list takes together, if splits are shorter.
    """

    begin: int
    n: int
    name: str
    entry: str
    grid: Dim3
    threads: int
    shared: int = 0
    slots: int = 1
    splits: int = 1
    rows: int = 1
    piece: int = 1

    def parts_bytes(self, width: int) -> int:
        """Scratch for what splits pass on: float sums, with two more floats a row."""
        return 4 * self.slots * self.splits * self.rows * (width + 2) if self.splits > 1 else 0


def _splits(device: DeviceInfo, slots: int, n_ctx: int) -> int:
    """As many as keep every multiprocessor busy with one block."""
    if slots > MAX_TICKETS:
        return 1
    return max(1, min(device.sm_count // slots, ceil_div(n_ctx, CHUNK), MAX_SPLITS))


def _any(device: DeviceInfo, q: Operand, k: Operand, v: Operand, n_ctx: int) -> Plan:
    per_lane = next(n for n in PER_LANE if 32 * n >= max(q.ne[0], v.ne[0]))
    entry = f"attention<{cpp_type(k.dtype)}, {cpp_type(v.dtype)}, {per_lane}>"
    n_head, n_tok = q.ne[1:3]
    splits = _splits(device, n_head * n_tok, n_ctx)
    grid = (n_head, n_tok, splits)
    return Plan(0, n_tok, "attention", entry, grid, 32 * WARPS, 0, n_head * n_tok, splits)


@dataclass(frozen=True)
class _Decode:
    """What launches of attention_decode.cu have in common."""

    device: DeviceInfo
    dtypes: tuple[DType, DType]  # of keys and values
    head_dim: int
    n_kv_head: int
    group: int  # rows of a token
    n_ctx: int

    def _ring(self, halves: int) -> int:
        """Bytes of the warps' rings for keys and values on their way, as attention_feed.cuh has
        them."""
        return WARPS * halves * KEYS * max(t.row_bytes(self.head_dim) for t in self.dtypes)

    def _entry(self, form: str, tile: int) -> str:
        types = ", ".join(map(cpp_type, self.dtypes))
        return f"attention_decode{form}<{types}, {self.head_dim}, {tile // 8}>"

    def few(self, begin: int, n: int) -> Plan:
        """Tokens of any sequences: a block a (KV head, split, tile)."""
        rows = self.group * n
        tile = 8 if rows <= 8 else 16
        tiles = ceil_div(rows, tile)
        slots = self.n_kv_head * tiles
        splits = _splits(self.device, slots, self.n_ctx)
        grid = (self.n_kv_head, splits, tiles)
        return Plan(begin, n, "attention_decode", self._entry("", tile), grid, 32 * WARPS,
                    self._ring(FEW_HALVES), slots, splits, tile)  # fmt: skip

    def single(self, begin: int, n: int) -> list[Plan]:
        """Tokens that are each alone in their sequence. Splits are those of a token by itself, so
        that its result does not depend on how many there are."""
        if n == 1:
            return [self.few(begin, n)]
        alone = self.few(begin, 1)
        tile = alone.rows
        rows = min(tile, self.group)
        slots, blocks = alone.slots, self.device.sm_count * (2 if tile == 8 else 1)
        most = max(1, min(LISTED, MAX_TICKETS // slots))
        entry = self._entry("_listed", tile)
        sums = WARPS * (self.head_dim + 2) + self.head_dim  # of a row
        shared = self._ring(LISTED_HALVES) + 4 * rows * sums
        return [
            Plan(
                begin + i, m, "attention_decode", entry,
                (min(m * slots * alone.splits, blocks), 1, 1), 32 * WARPS, shared, m * slots,
                alone.splits, rows, PIECE if m * slots > blocks else PIECE // 2,
            )
            for i in range(0, n, most)
            for m in (min(most, n - i),)
        ]  # fmt: skip


def _prefill(device: DeviceInfo, types: str, hd: int, n_kv_head: int, begin: int, n: int,
             rows: int) -> Plan | None:  # fmt: skip
    tiles = ceil_div(rows, PREFILL_ROWS)
    for keys in PREFILL_KEYS:
        shared = 2 * hd * (PREFILL_ROWS + 4 * keys)
        if shared <= device.shared_per_block - STATIC and tiles <= MAX_GRID_YZ:
            entry, grid = f"attention_prefill<{types}, {keys}>", (n_kv_head, tiles, 1)
            return Plan(begin, n, "attention_prefill", entry, grid, PREFILL_THREADS, shared)
    return None


def _tensor_cores(
    device: DeviceInfo, q: Operand, k: Operand, v: Operand, n_ctx: int, n_single: int
) -> list[Plan] | None:
    """The plans for head sizes and types that the tensor-core kernels take."""
    names = {k.dtype.name, v.dtype.name}
    hd, n_kv_head = k.ne[0], k.ne[1]
    if hd not in HEAD_SIZES or v.ne[0] != hd or not (names <= {"f16", "q8_0"} or names == {"bf16"}):
        return None
    types, group = f"{cpp_type(k.dtype)}, {cpp_type(v.dtype)}, {hd}", q.ne[1] // n_kv_head
    decode = _Decode(device, (k.dtype, v.dtype), hd, n_kv_head, group, n_ctx)
    plans = decode.single(0, n_single) if n_single else []
    n = q.ne[2] - n_single
    if 0 < n * group <= DECODE_ROWS:
        plans.append(decode.few(n_single, n))
    elif n:
        many = _prefill(device, types, hd, n_kv_head, n_single, n, n * group)
        if many is None:
            return None
        plans.append(many)
    for p in plans:
        static = LISTED_STATIC if "_listed" in p.entry else STATIC
        if p.shared > device.shared_per_block - static:
            return None  # the rings of keys and values do not fit
    return plans


def _wide_loads(o: Operand) -> bool:
    """Whether the tensor-core kernels' loads are aligned: copies of q8_0 rows are as wide as their
    length allows."""
    step = gcd(o.dtype.row_bytes(o.ne[0]), 16) if o.dtype.is_quantized else 16
    return not (o.address % step or o.nb[1] % step or o.nb[2] % step)


def supports(node: Tensor) -> bool:
    q = node.live_srcs()[0]
    widest = max(q.shape[2], node.shape[2])
    return widest <= 32 * PER_LANE[-1] and q.shape[0] <= MAX_GRID_YZ


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    q, k, v, _, _, table = (Operand.of(t, 0) for t in node.live_srcs())
    n_ctx = table.ne[0] * PAGE
    plans = _tensor_cores(device, q, k, v, n_ctx, node.params["n_single"]) or []
    return max(p.parts_bytes(v.ne[0]) for p in (_any(device, q, k, v, n_ctx), *plans))


def launches(call: Call) -> list[Launch]:
    q, k, v, pos, seq, table = (call.src(i) for i in range(6))
    n_ctx = table.ne[0] * PAGE
    plans = _tensor_cores(call.device, q, k, v, n_ctx, call.node.params["n_single"])
    if plans is None or not all(_wide_loads(o) for o in (q, k, v, call.dst)):
        plans = [_any(call.device, q, k, v, n_ctx)]
    params = op_spec("attention").pack_params(call.node.params)

    def tokens(o: Operand, plan: Plan, axis: int) -> Operand:
        """The plan's part of an operand."""
        ne = tuple(plan.n if i == axis else n for i, n in enumerate(o.ne))
        return o.shift(plan.begin * o.nb[axis], ne)

    def launch(plan: Plan) -> Launch:
        operands = (
            tokens(call.dst, plan, 2), tokens(q, plan, 2), k, v, tokens(pos, plan, 0),
            tokens(seq, plan, 0), table,
        )  # fmt: skip
        numbers = params + struct.pack("@i", plan.splits) + struct.pack("@P", call.scratch)
        numbers += fast_div(q.ne[1] // k.ne[1]) + struct.pack("@2i", plan.rows, plan.piece)
        args = pack(*operands, numbers)
        code = Kernel(f"{plan.name}.cu", plan.entry)
        return Launch(code, plan.grid, (plan.threads, 1, 1), args, plan.shared, dependent=True)

    return [launch(p) for p in plans]
