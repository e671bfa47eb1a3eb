"""Launches attention: attention_decode.cu for single tokens, attention_prefill.cu for those of
prompts, attention_prefill_few.cu where they are few, attention.cu for the head sizes, types and
layouts that these do not take, attention_plain.cu for wide heads.

A row below is a (token, head) of those that read one KV head. Grids depend on shapes alone; which
part of the cache is visible, kernels read from the positions. A token's result depends on its kind,
its position and its keys; and for a prompt's that sees keys on both sides of a multiple of STRETCH,
on whether the run has few of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from gguflow.engine.graph import Tensor, op_spec
from gguflow.engine.plan_key import PAGE

from . import attention_plain, columns_int8, mul_mat_few, next_columns, next_fragments
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
    register,
)

OPS = ("attention",)
WARPS = 8  # of attention.cu and attention_decode.cu
PER_LANE = (2, 4, 8, 16)  # elements of a head that a lane of attention.cu may hold
CHUNK = 128  # keys of which splits have some
KEYS = 16  # of a chunk, a warp
SMALL = 9 << 10  # bytes of two groups up to which a warp has two on their way
MAX_SPLITS, MAX_TICKETS = 128, 8192  # of a slot, and slots
LISTED = 256  # single tokens of a launch
HEAD_SIZES = (64, 80, 96, 128, 256, 512)  # of the tensor-core kernels for prompts
SINGLE_SIZES = (64, 80, 96, 128, 256)  # of the one for single tokens
# Of attention_prefill.cu: rows of a block, and keys of a tile, the most for which there is room.
TILES = {hd: (128, (128, 64)) if hd <= 128 else (64, (64, 32)) for hd in HEAD_SIZES}
PREFILL_THREADS = 256
FEW, FEW_ROWS = 64, 64  # tokens of prompts in a run that are few, and rows of a block then
STRETCH = 2048  # keys whose sums are folded one after the other
ROOM = 64 << 20  # bytes of scratch up to which the stretches of few rows are shared among blocks
STATIC = 3 << 10  # shared memory that the other kernels declare themselves, at most
DECODE_STATIC = 15 << 10  # the same of attention_decode.cu


@dataclass(frozen=True)
class Plan:
    """A launch without its addresses, of `n` tokens from `begin` on.

    splits: of a token, at most. slots: what several blocks may share, of `rows` each. tiles: of
    rows, of attention_prefill_few.cu. roomy: entry and shared memory of `Launch.roomy`.
    """

    begin: int
    n: int
    name: str
    entry: str
    grid: Dim3
    threads: int
    shared: int = 0
    slots: int = 0
    splits: int = 1
    rows: int = 1
    tiles: int = 0
    roomy: tuple[str, int] | None = None

    def parts_bytes(self, width: int) -> int:
        """Scratch for what splits pass on: float sums, with two more floats a row."""
        n = self.slots * self.splits * self.rows if self.splits > 1 else 0
        return ceil_div(4 * n * (width + 2), 256) * 256


def _splits(device: DeviceInfo, slots: int, n_ctx: int) -> int:
    """Of one token with as many slots: as many as keep every multiprocessor busy with one block."""
    return max(1, min(device.sm_count // slots, ceil_div(n_ctx, CHUNK), MAX_SPLITS))


def _any(
    device: DeviceInfo, q: Operand, k: Operand, v: Operand, n_ctx: int, begin: int = 0,
    n_tok: int | None = None,
) -> Plan:  # fmt: skip
    """n_tok tokens from `begin` on, or all of them."""
    per_lane = next(n for n in PER_LANE if 32 * n >= max(q.ne[0], v.ne[0]))
    entry = f"attention<{cpp_type(k.dtype)}, {cpp_type(v.dtype)}, {per_lane}>"
    n_head, n_tok = q.ne[1], q.ne[2] - begin if n_tok is None else n_tok
    splits = _splits(device, n_head, n_ctx)
    # A block goes through the splits where there are enough tokens for all multiprocessors.
    parallel = splits if n_head * n_tok <= device.sm_count else 1
    slots = n_head * n_tok if parallel > 1 else 0
    grid = (n_head, n_tok, parallel)
    return Plan(begin, n_tok, "attention", entry, grid, 32 * WARPS, 0, slots, splits)


def _single(
    device: DeviceInfo, k: Operand, v: Operand, group: int, n_ctx: int, n: int
) -> list[Plan]:
    """n single tokens. Splits are those of one by itself, so that its result does not depend on
    how many there are."""
    hd, n_kv_head = k.ne[0], k.ne[1]
    tile = 8 if group <= 8 else 16
    tiles, rows = ceil_div(group, tile), min(tile, group)
    slots = n_kv_head * tiles
    splits = _splits(device, slots, n_ctx)
    types = f"{cpp_type(k.dtype)}, {cpp_type(v.dtype)}, {hd}, {tile // 8}"
    # A warp's ring of keys and values on their way, as in attention_feed.cuh.
    half = KEYS * max(t.dtype.row_bytes(hd) for t in (k, v))
    ring = 2 * half * (2 if 4 * half <= SMALL else 1)
    threads = 32 * WARPS
    if n == 1:
        sums = 4 * tile * (hd + 2)
        plan = Plan(0, 1, "attention_decode", f"attention_decode<{types}>",
                    (n_kv_head, splits, tiles), threads, WARPS * max(ring, sums), slots, splits,
                    rows)  # fmt: skip
        longer = WARPS * max(4 * half, sums)
        room = device.shared_per_block - DECODE_STATIC
        if ring < 4 * half and n_ctx > CHUNK and longer <= room:
            plan = replace(plan, roomy=(f"attention_decode<{types}, false, 2>", longer))
        return [plan]
    shared = WARPS * ring + 4 * rows * (WARPS * (hd + 2) + hd)
    blocks = device.sm_count * (2 if tile == 8 and hd <= 128 else 1)
    most = max(1, min(LISTED, MAX_TICKETS // slots))
    return [
        Plan(i, m, "attention_decode", f"attention_decode_listed<{types}>",
             (min(m * slots * splits, blocks), 1, 1), threads, shared, m * slots, splits, rows)
        for i in range(0, n, most)
        for m in (min(most, n - i),)
    ]  # fmt: skip


def _prefill(
    device: DeviceInfo, k: Operand, v: Operand, group: int, table: tuple[int, int], begin: int,
    n: int,
) -> Plan | None:  # fmt: skip
    """n tokens of prompts, from `begin` on. table: entries of a sequence, and sequences."""
    hd, n_kv_head = k.ne[0], k.ne[1]
    most_rows, sizes = TILES[hd]
    rows = most_rows if n > FEW else FEW_ROWS
    tiles = ceil_div(n * group, rows)
    types = f"{cpp_type(k.dtype)}, {cpp_type(v.dtype)}, {hd}"
    if n > FEW:
        plan = Plan(begin, n, "attention_prefill", "", (n_kv_head, tiles, 1), PREFILL_THREADS)
    else:
        # Sequences that start within a tile, mostly: where there are more, blocks take several.
        y = tiles + min(table[1], n - 1)
        slots, splits = n_kv_head * y, ceil_div(table[0] * PAGE, STRETCH)
        plan = Plan(begin, n, "attention_prefill_few", "", (n_kv_head, y, 1), PREFILL_THREADS, 0,
                    slots, splits, rows, tiles)  # fmt: skip
        parallel = min(splits, device.sm_count // (n_kv_head * tiles))
        if parallel < 2 or slots > MAX_TICKETS or plan.parts_bytes(hd) > ROOM:
            plan = replace(plan, slots=0)
        else:
            plan = replace(plan, grid=(n_kv_head, y, parallel))
    # Tiles are those of both kernels, as sums are in their order.
    room = device.shared_per_block - STATIC - 2 * hd * max(most_rows, FEW_ROWS)
    keys = next((n for n in sizes if 8 * hd * n <= room), None)
    if keys is None or plan.grid[1] > MAX_GRID_YZ:
        return None
    entry = f"{plan.name}<{types}, {keys}>"
    return replace(plan, entry=entry, shared=2 * hd * (rows + 4 * keys))


def _of_singles(
    device: DeviceInfo, q: Operand, k: Operand, v: Operand, n_ctx: int, n: int
) -> list[Plan]:
    """The plans for n single tokens where attention_decode.cu takes them, one as well as many."""
    names, hd, group = {k.dtype.name, v.dtype.name}, k.ne[0], q.ne[1] // k.ne[1]
    halves = names <= {"f16"} or names == {"bf16"}
    known = halves or (names <= {"f16", "q8_0"} and hd % 64 == 0)
    if n == 0 or hd not in SINGLE_SIZES or v.ne[0] != hd or not known:
        return []
    fits = device.shared_per_block - DECODE_STATIC
    plans = {m: _single(device, k, v, group, n_ctx, m) for m in (1, 2, n)}
    return plans[n] if all(p.shared <= fits for some in plans.values() for p in some) else []


def _of_prompts(
    device: DeviceInfo, q: Operand, k: Operand, v: Operand, table: Operand, begin: int
) -> Plan | None:
    """The plan for the tokens from `begin` on where the tensor-core kernels take them."""
    names, hd, n = {k.dtype.name, v.dtype.name}, k.ne[0], q.ne[2] - begin
    if hd not in HEAD_SIZES or v.ne[0] != hd or not (names <= {"f16", "q8_0"} or names == {"bf16"}):
        return None
    entries = table.ne[0], table.ne[1]
    return _prefill(device, k, v, q.ne[1] // k.ne[1], entries, begin, n)


def _plans(
    device: DeviceInfo, q: Operand, k: Operand, v: Operand, table: Operand, n_single: int
) -> list[Plan]:
    """Those of prompts first, as their blocks take longest."""
    n_ctx = table.ne[0] * PAGE
    singles = _of_singles(device, q, k, v, n_ctx, n_single)
    fast = _of_prompts(device, q, k, v, table, n_single) if n_single < q.ne[2] else None
    if fast is None:
        begin = n_single if singles else 0
        return [*([_any(device, q, k, v, n_ctx, begin)] if begin < q.ne[2] else []), *singles]
    if n_single > 0 and not singles:
        singles = [_any(device, q, k, v, n_ctx, 0, n_single)]
    return [fast, *singles]


def _wide_loads(o: Operand) -> bool:
    """Whether the tensor-core kernels' loads are aligned: copies of q8_0 rows are as wide as their
    length allows."""
    step = gcd(o.dtype.row_bytes(o.ne[0]), 16) if o.dtype.is_quantized else 16
    return not (o.address % step or o.nb[1] % step or o.nb[2] % step)


def supports(node: Tensor) -> bool:
    if attention_plain.applies(node):
        return attention_plain.supports(node)
    q = node.live_srcs()[0]
    widest = max(q.shape[2], node.shape[2])
    return widest <= 32 * PER_LANE[-1] and q.shape[0] <= MAX_GRID_YZ


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    if attention_plain.applies(node):
        return 0
    q, k, v, _, _, table = (Operand.of(t, 0) for t in node.live_srcs()[:6])
    plans = _plans(device, q, k, v, table, node.params["n_single"])
    # Launches that run beside each other have room of their own.
    most = sum(p.parts_bytes(v.ne[0]) for p in plans)
    if _leave_next(plans, q, v):
        columns = q.ne[2], q.ne[1] * v.ne[0]
        # Which of the two depends on how the weights of the product behind lie.
        floats = next_fragments.room(*columns, device) if device.has_fragments else 0
        most += max(floats, 0 if device.one_class else columns_int8.room(*columns))
    return max(most, _any(device, q, k, v, table.ne[0] * PAGE).parts_bytes(v.ne[0]))


def _leave_next(plans: Sequence[Plan], q: Operand, v: Operand) -> bool:
    """Of as many tokens as mul_mat_few.cu and mul_mat_fragments_few.cu have columns, in whole
    blocks, and records or units of fragments."""
    listed = len(plans) == 1 and plans[0].entry.startswith("attention_decode_listed<")
    whole = v.ne[0] % columns_int8.BLOCK == q.ne[1] * v.ne[0] % columns_int8.CHUNK == 0
    return listed and whole and q.ne[2] <= mul_mat_few.MOST


def leaves_next(call: Call) -> bool:
    """Whether this op may leave its results rounded for the product behind."""
    if attention_plain.applies(call.node):
        return False
    return _leave_next(_plans_of(call), call.src(0), call.src(2))


def _plans_of(call: Call) -> list[Plan]:
    """Of what attention_plain.cu does not take."""
    q, k, v, table = (call.src(i) for i in (0, 1, 2, 5))
    if all(_wide_loads(o) for o in (q, k, v, call.dst)):
        return _plans(call.device, q, k, v, table, call.node.params["n_single"])
    return [_any(call.device, q, k, v, table.ne[0] * PAGE)]


def launches(
    call: Call, then: columns_int8.Records | None = None, floats: next_fragments.Left | None = None
) -> list[Launch]:
    """then, floats: at the start of the scratch memory, where the results are left rounded for the
    product behind, of an op that `leaves_next`."""
    if attention_plain.applies(call.node):
        return attention_plain.launches(call)
    q, k, v, pos, seq, table = (call.src(i) for i in range(6))
    plans = _plans_of(call)
    left = then or floats
    scratch = call.scratch if left is None else left.end
    params = op_spec("attention").pack_params(call.node.params)
    sinks = call.optional(6)

    def tokens(o: Operand, plan: Plan, axis: int) -> Operand:
        """The plan's part of an operand."""
        ne = tuple(plan.n if i == axis else n for i, n in enumerate(o.ne))
        return o.shift(plan.begin * o.nb[axis], ne)

    # The second of a launch for prompts and one for single tokens need not wait for the first, if
    # that lets it in after its own wait.
    first, second = (*(p.name for p in plans), "")[:2]
    both = first.startswith("attention_prefill") and second == "attention_decode"

    def launch(i: int, plan: Plan) -> Launch:
        operands = (
            tokens(call.dst, plan, 2), tokens(q, plan, 2), k, v, tokens(pos, plan, 0),
            tokens(seq, plan, 0), table,
        )  # fmt: skip
        parts = scratch + sum(p.parts_bytes(v.ne[0]) for p in plans[:i])
        numbers = params + struct.pack("@i", plan.splits) + struct.pack("@P", parts)
        numbers += struct.pack("@P", 0 if sinks is None else sinks.address)
        numbers += fast_div(q.ne[1] // k.ne[1]) + struct.pack("@i", plan.rows)
        numbers += fast_div(plan.slots // plan.n)  # of a token
        early = plan.n == call.node.params["n_single"]
        numbers += struct.pack("@3i", plan.tiles, both and i < 2, early)
        numbers += next_columns.place(then) + next_fragments.place(floats)
        args = pack(*operands, numbers)
        code = Kernel(f"{plan.name}.cu", plan.entry)
        made = Launch(code, plan.grid, (plan.threads, 1, 1), args, plan.shared, dependent=True)
        if plan.roomy is None:
            return made
        entry, shared = plan.roomy
        roomy = replace(made, kernel=replace(code, entry=entry), shared=shared)
        return replace(made, roomy=roomy)

    return [launch(i, p) for i, p in enumerate(plans)]


register(OPS, launches, supports=supports, scratch_bytes=scratch_bytes)
