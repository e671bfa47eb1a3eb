"""Launches mul_mat_vec.cu: products of few columns, with what stands around them in a decode step.

mul_mat.py sends mul_mat, mul_mat_add and mul_mat_swiglu of few columns here, mul_mat_norm.py the
ops that begin with a norm, and mul_mat_ends.py those of one column that end in more.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gguflow.engine.graph import F32, Tensor

from .compact import ALONG, compact_rows, is_compact
from .compact import row_bytes as compact_row_bytes
from .launch import Call, DeviceInfo, Kernel, Launch, Operand, ceil_div, cpp_type, register
from .one_column import WARPS, blocks_of, shape_of
from .rope import rope_numbers

OPS = ("mul_mat_relu",)
FEW = 8  # columns
FASTEST = 4  # columns up to which no other way is faster
ROWS = 2  # weight rows of a stage
FLOATS = ("f16", "bf16")
STATES = ("f32", "f16", "bf16")
STATIC = 1 << 10  # shared memory that kernels of columns like these declare themselves, at most
_DECLARED = 128  # that mul_mat_vec.cu does
MAX_STAGES = 4  # more on their way delay the columns, which queue behind them
LEAST_SHARED = 99 << 10  # a block may have on any GPU of compute capability 8.0 or more
_WEIGHTS = {"norm_mul_mat": 1, "norm_mul_mat_swiglu": 2, "norm_qkv_rope": 3}  # after x and norm
CHUNK = {"quantized": 2048, "float": 512}  # elements of a row a stage holds
WIDE, WIDE_STAGES = 1024, 3  # of float weights and one column: longer runs of bytes come faster
_BESIDE = 4 << 10  # bytes that rotations and barriers take, at most


def kind_of(w: Operand) -> str:
    return "float" if w.dtype.name in FLOATS else "quantized"


def is_wide(weights: Sequence[Operand], m: int, device: DeviceInfo) -> bool:
    """Whether stages hold WIDE elements of a row: there has to be room for all the warps."""
    if m > 1 or kind_of(weights[0]) != "float":
        return False
    fixed = STATIC + _BESIDE + column_bytes("float", weights[0].ne[0], WIDE)
    return fixed + 2 * WARPS[0] * stage_bytes(weights, WIDE) <= device.shared_per_block


def chunk_bytes(w: Operand, chunk: int = 0) -> int:
    return (chunk or CHUNK[kind_of(w)]) // w.dtype.block * w.dtype.nbytes


def form_of(weights: Sequence[Operand], m: int, device: DeviceInfo) -> str:
    """How stages hold rows, as the kernels name it: wide, or wide and compact; none is as usual."""
    if not is_wide(weights, m, device):
        return ""
    return "compact" if is_compact(weights, ALONG) else "wide"


def _as_read(weights: Sequence[Operand], m: int, device: DeviceInfo) -> list[Operand]:
    """The weights where their rows are read."""
    form = form_of(weights, m, device)
    return [compact_rows(w) if form == "compact" else w for w in weights]


def stage_bytes(weights: Sequence[Operand], chunk: int = 0) -> int:
    return ROWS * max(chunk_bytes(w, chunk) for w in weights) + 16


def column_bytes(kind: str, k: int, chunk: int = 0) -> int:
    """Shared memory that a column takes. chunk: elements of a stage, other than usual."""
    chunk = chunk or CHUNK[kind]
    return ceil_div(k, chunk) * (chunk // 64 * 80 if kind == "quantized" else 4 * chunk)


def columns_for(m: int) -> int:
    """Columns of the kernel that is used for m."""
    return next(c for c in (1, 2, 4, 8) if c >= m)


def plan(
    weights: Sequence[Operand], k: int, m: int, head_dim: int, device: DeviceInfo,
    may_be_wide: bool = True, pairs: int = 0,
) -> tuple[int, int, int]:  # fmt: skip
    """(warps, stages, bytes of shared memory); no stages when there is no room for two. pairs: of
    rows, of a matrix by itself.

    A block takes all the shared memory it can use: bytes on their way hide the latency.
    """
    kind = kind_of(weights[0])
    form = form_of(weights, m, device) if may_be_wide else ""
    chunk, most = (WIDE, WIDE_STAGES) if form else (0, MAX_STAGES)
    columns = columns_for(m)
    turns = ceil_div(columns * head_dim * 4, 16) * 16
    fixed = columns * column_bytes(kind, k, chunk) + turns + 16
    stage = stage_bytes(weights, chunk)
    if form == "compact":
        stage = ROWS * compact_row_bytes(weights[0].dtype, chunk) + 16
    stage += 8  # and its barrier
    room = device.shared_per_block - STATIC - fixed
    for warps in WARPS:
        stages = min(most, max(0, room) // (warps * stage))
        if stages >= 2:
            if m == 1 and pairs:
                chunks = ceil_div(k, chunk or CHUNK[kind])
                warps, stages = shape_of(
                    warps, stages, pairs, chunks,
                    lambda w, s: _DECLARED + fixed + w * s * stage, device,
                )  # fmt: skip
            return warps, stages, fixed + stages * warps * stage
    return 0, 0, 0


def _rows_ok(w: Operand) -> bool:
    k, rows = w.ne[:2]
    quantized = w.dtype.is_quantized
    return (
        (quantized or w.dtype.name in FLOATS)
        and k % 64 == 0
        and w.ne[2:] == (1, 1)
        and w.address % 16 == 0
        and w.nb[0] == w.dtype.nbytes
        and w.nb[1] % 16 == 0
        and w.nb[1] < 1 << 31
        and 0 < rows < 1 << 30
    )


def takes(dst: Operand, weights: Sequence[Operand], x: Operand, device: DeviceInfo,
          head_dim: int = 0) -> bool:  # fmt: skip
    """Whether the kernel can multiply these: few dense columns and aligned rows of one kind."""
    kinds = {kind_of(w) for w in weights}
    return (
        x.ne[1] <= FEW
        and x.ne[2:] == (1, 1)
        and len(kinds) == 1
        and all(_rows_ok(w) for w in weights)
        and x.address % 16 == x.nb[1] % 16 == 0
        and x.nb[0] == 4
        and dst.nb[0] == 4
        and plan(weights, x.ne[0], x.ne[1], head_dim, device)[0] > 0
    )


def arguments(
    w: Sequence[Operand],
    x: Operand,
    dst: Operand,
    stages: int,
    *,
    norm: Operand | None = None,
    eps: float = 0.0,
    r: Operand | None = None,
    bias: Operand | None = None,
    pairs: Sequence[int],
    pos: Operand | None = None,
    rows: Operand | None = None,
    factors: Operand | None = None,
    states: Sequence[Operand] = (),
    rope: bytes = bytes(40),
    head_dim: int = 0,
    neox: bool = False,
    norm_bias: Operand | None = None,
    normed: Operand | None = None,
    act: Operand | None = None,
) -> bytes:
    """`VecArgs` of vec_parts.cuh."""

    def address(o: Operand | None) -> int:
        return 0 if o is None else o.address

    def four(values: Sequence[int]) -> list[int]:
        return [*values, 0, 0, 0, 0][:4]

    r_step = 0 if r is None or r.ne[1] == 1 else r.nb[1] // 4
    two = [*states, None, None][:2]
    body = struct.pack(
        "@23q",
        *four([o.address for o in w]), x.address, address(norm), dst.address, address(r),
        address(bias), address(pos), address(rows), address(factors), *(address(s) for s in two),
        *four([o.nb[1] for o in w]), x.nb[1] // 4, dst.nb[1] // 4, r_step,
        *(0 if s is None else s.nb[1] for s in two),
    )  # fmt: skip
    types = [0 if s is None else STATES.index(s.dtype.name) for s in two]
    n_ctx = states[0].ne[1] if states else 0
    numbers = struct.pack(
        "@f16i", eps, *four(pairs), *four([o.ne[1] for o in w]), x.ne[0], x.ne[1], stages,
        head_dim, int(neox), *types, n_ctx,
    )  # fmt: skip
    body += rope + numbers
    body += bytes(-len(body) % 8) + struct.pack("@3q", *map(address, (norm_bias, normed, act)))
    return body + bytes(-len(body) % 16)


def _launch(kind: str, weights: Sequence[Operand], m: int, warps: int, shared: int,
            n_pairs: int, args: bytes, device: DeviceInfo) -> Launch:  # fmt: skip
    types = [cpp_type(w.dtype) for w in (weights[0], weights[:3][-1])]
    if form := form_of(weights, m, device):
        types = [f"{form}<{t}>" for t in types]
    entry = f"mul_mat_vec<{kind}, {types[0]}, {types[1]}, {columns_for(m)}>"
    grid = blocks_of(n_pairs, warps, m == 1 and len(weights) == 1, device)
    kernel = Kernel("mul_mat_vec.cu", entry)
    return Launch(kernel, (grid, 1, 1), (32 * warps, 1, 1), args, shared, dependent=True)


def multiply_few(
    device: DeviceInfo,
    dst: Operand,
    w: Operand,
    x: Operand,
    r: Operand | None = None,
    norm: Operand | None = None,
    eps: float = 0.0,
    kind: str = "PLAIN",
    bias: Operand | None = None,
) -> Launch:
    """dst = norm(x) w^T + r for operands that `takes` takes. kind: RELU, of that without r; GELU or
    GELU_ERF of it; BIASED, with a bias before r."""
    pairs = ceil_div(w.ne[1], ROWS)
    warps, stages, shared = plan([w], x.ne[0], x.ne[1], 0, device, pairs=pairs)
    rows = _as_read([w], x.ne[1], device)
    args = arguments(rows, x, dst, stages, norm=norm, eps=eps, r=r, bias=bias, pairs=[pairs])
    return _launch(kind, [w], x.ne[1], warps, shared, pairs, args, device)


def swiglu_few(
    device: DeviceInfo,
    dst: Operand,
    gate: Operand,
    up: Operand,
    x: Operand,
    norm: Operand | None = None,
    eps: float = 0.0,
    kind: str = "GLU",
) -> Launch:
    """dst = swiglu(norm(x) gate^T, norm(x) up^T), or with GEGLU geglu, for weights of one type."""
    warps, stages, shared = plan([gate, up], x.ne[0], x.ne[1], 0, device)
    rows = _as_read([gate, up], x.ne[1], device)
    args = arguments(rows, x, dst, stages, norm=norm, eps=eps, pairs=[gate.ne[1]])
    return _launch(kind, [gate, up], x.ne[1], warps, shared, gate.ne[1], args, device)


def joined_few(
    device: DeviceInfo,
    dst: Operand,
    weights: Sequence[Operand],
    x: Operand,
    norm: Operand | None,
    eps: float,
) -> Launch:
    """dst = norm(x) w^T for up to four weights, the rows of one after the other's: of one type, or
    three of which the last has its own."""
    warps, stages, shared = plan(weights, x.ne[0], x.ne[1], 0, device)
    pairs = [ceil_div(w.ne[1], ROWS) for w in weights]
    rows = _as_read(weights, x.ne[1], device)
    args = arguments(rows, x, dst, stages, norm=norm, eps=eps, pairs=pairs)
    return _launch("JOINED", weights, x.ne[1], warps, shared, sum(pairs), args, device)


def supports_heads(node: Tensor) -> bool:
    """Whether queries, keys and values are made and go where the kernels can put them."""
    wq, wk, wv, pos, rows, k_state, v_state = node.srcs[2:9]
    assert wq and wk and wv and pos and rows and k_state and v_state
    return (
        wq.dtype is wk.dtype
        and pos.is_contiguous
        and rows.is_contiguous
        and k_state.shape[0] == v_state.shape[0]
        and node.params["n_dims"] == node.shape[2]
        and node.params["mode"] in ("norm", "neox")
        and not any(w.shape[0] % 2 for w in (wq, wk, wv))
        and all(s.dtype.name in STATES for s in (k_state, v_state))
    )


def supports(node: Tensor) -> bool:
    """What the kernel takes, on every device."""
    device = DeviceInfo(shared_per_block=LEAST_SHARED)
    operands = [None if s is None else Operand.of(s, s.view_offset) for s in node.srcs]
    if node.op == "mul_mat_relu":
        w, x = operands
        return w is not None and x is not None and takes(Operand.of(node, 0), [w], x, device)
    weights = [o for o in operands[2 : 2 + _WEIGHTS[node.op or ""]] if o is not None]
    x, norm = operands[:2]
    assert x is not None
    if norm is not None and (norm.address % 16 or norm.nb[0] != 4):
        return False
    head_dim = node.shape[2] if node.op == "norm_qkv_rope" else 0
    if node.op == "norm_qkv_rope" and not supports_heads(node):
        return False
    if node.op == "norm_mul_mat_swiglu":
        slow = weights[0].dtype.name in FLOATS and x.ne[1] > FASTEST
        if slow or weights[0].dtype is not weights[1].dtype:
            return False
    return takes(Operand.of(node, 0), weights, x, device, head_dim)


def launches(call: Call) -> list[Launch]:
    op, d = call.node.op, call.device
    if op == "mul_mat_relu":
        return [multiply_few(d, call.dst, call.src(0), call.src(1), kind="RELU")]
    x, norm, eps = call.src(0), call.optional(1), call.node.params["eps"]
    if op == "norm_mul_mat":
        return [multiply_few(d, call.dst, call.src(2), x, norm=norm, eps=eps)]
    if op == "norm_mul_mat_swiglu":
        return [swiglu_few(d, call.dst, call.src(2), call.src(3), x, norm=norm, eps=eps)]
    return [heads_few(call, x, norm, eps)]


def heads_few(
    call: Call,
    x: Operand,
    norm: Operand | None,
    eps: float,
    kind: str = "QKV",
    more: Sequence[Operand] = (),
    **beside: Operand | None,
) -> Launch:
    """A norm_qkv_rope of x as `supports_heads` wants it. more: a weight after its three; beside: as
    for `heads_arguments`."""
    weights = [*(call.src(i) for i in (2, 3, 4)), *more]
    warps, stages, shared = plan(weights, x.ne[0], x.ne[1], call.dst.ne[0], call.device)
    rows = _as_read(weights, x.ne[1], call.device)
    args = heads_arguments(call, x, norm, eps, rows, stages, **beside)
    pairs = sum(ceil_div(w.ne[1], ROWS) for w in weights)
    return _launch(kind, weights, x.ne[1], warps, shared, pairs, args, call.device)


def heads_arguments(
    call: Call,
    x: Operand,
    norm: Operand | None,
    eps: float,
    weights: Sequence[Operand],
    stages: int,
    **beside: Operand | None,
) -> bytes:
    """`arguments` of a norm_qkv_rope of x. weights: its three, and maybe one after them whose
    product ends elsewhere; beside: what else is to be known of it."""
    p = dict(call.node.params)
    head_dim = call.dst.ne[0]
    dense = Tensor("q", F32, (x.ne[1], weights[0].ne[1]), call.node.role)
    return arguments(
        weights, x, Operand.of(dense, call.dst.address), stages, norm=norm, eps=eps,
        pairs=[ceil_div(w.ne[1], ROWS) for w in weights],
        pos=call.src(5), rows=call.src(6), states=[call.src(7), call.src(8)],
        factors=call.optional(9),
        rope=rope_numbers(p, head_dim), head_dim=head_dim, neox=p["mode"] == "neox", **beside,
    )  # fmt: skip


register(OPS, launches, supports=supports)
