"""Launches mul_mat_id.cu and mul_mat_id_vec.cu: products with the experts that rows go to."""

from __future__ import annotations

import struct
from math import gcd

from gguflow.engine.graph import Role, Tensor, op_spec

from .expert_columns import Experts, takes
from .expert_vec import FEW, glu_launch, takes_glu
from .glu import FUNCTOR
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
    pack,
    register,
)
from .mul_mat_rows import round_launch

OPS = ("mul_mat_id",)
ROWS_OF_WARP, WARPS = 4, 4
TILE_ROWS = 64
MOST_EXPERTS = 1024  # kSorters
_SOURCE = "mul_mat_id.cu"
_COLUMNS = 16  # bytes of a `Columns`


def _own_rows(dst: Operand, x: Operand) -> bool:
    """Whether x has a row for each id."""
    return x.ne[1:3] == dst.ne[1:3]


def _eights(w: Operand, x: Operand) -> bool:
    """Whether rows are whole eights at addresses for wide loads."""
    if w.ne[0] % 8 or any(b % 16 for b in (x.address, *x.nb[1:3])):
        return False
    # Blocks are read by words of two or four bytes where their size allows it.
    step = gcd(w.dtype.nbytes, 4) if w.dtype.is_quantized else 16
    return w.nb[0] == w.dtype.nbytes and not any(b % step for b in (w.address, *w.nb[1:3]))


def _takes_tiles(w: Operand, x: Operand, n_pairs: int) -> bool:
    """Whether the tensor cores do it: where rounding to 16 bits is no loss beside the weights'."""
    return (
        n_pairs > FEW
        and w.dtype.name != "f32"
        and w.ne[2] <= MOST_EXPERTS
        and n_pairs < 1 << 31
        and _eights(w, x)
    )


def _width(w: Operand, n_pairs: int) -> int:
    """Pairs of a tile."""
    return 32 if n_pairs <= 32 * w.ne[2] else 64


def _tiles(w: Operand, n_pairs: int) -> int:
    """The most tiles that there may be."""
    return min(w.ne[2], n_pairs) + n_pairs // _width(w, n_pairs)


def _layout(w: Operand, x: Operand, n_pairs: int) -> list[int]:
    """Offsets in scratch memory: [rounded x][a scale a row][pairs][tiles][how many][end]."""
    at = [0]
    for nbytes in (2 * x.size, 4 * x.rows, 4 * n_pairs, _COLUMNS * _tiles(w, n_pairs), 4):
        at.append(at[-1] + ceil_div(nbytes, 256) * 256)
    return at


def supports(node: Tensor) -> bool:
    n_pairs = node.shape[0] * node.shape[1]
    return n_pairs + node.live_srcs()[0].shape[0] <= MAX_GRID_YZ


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    w, x, ids = (Operand.of(t, t.view_offset) for t in node.live_srcs()[:3])
    return product_bytes(w, x, ids, device)


def product_bytes(w: Operand, x: Operand, ids: Operand, device: DeviceInfo) -> int:
    """Scratch memory of `product_launches`, whichever way addresses decide for."""
    tiles = _layout(w, x, ids.size)[-1] if _takes_tiles(w, x, ids.size) else 0
    return max(tiles, Experts([w], x, ids).end) if takes(w, x, ids.size, device) else tiles


def vec_launch(dst: Operand, w: Operand, x: Operand, ids: Operand, bias: Operand | None) -> Launch:
    """Products of few pairs."""
    grid, types = _vec(dst, w, x, ROWS_OF_WARP)
    args = _arguments(dst, w, x, ids, bias)
    kernel = Kernel("mul_mat_id_vec.cu", f"mul_mat_id_vec<{types}>")
    return Launch(kernel, grid, (32 * WARPS, 1, 1), args, dependent=True)


def _vec(dst: Operand, w: Operand, x: Operand, rows: int, *others: Operand) -> tuple[Dim3, str]:
    """The grid of mul_mat_id_vec.cu with so many rows a warp, and its template arguments."""
    eights = "true" if all(_eights(o, x) for o in (w, *others)) else "false"
    grid = (ceil_div(w.ne[1], rows * WARPS), dst.ne[1] * dst.ne[2], 1)
    return grid, f"{cpp_type(w.dtype)}, {rows}, {eights}"


def glu_few_launch(call: Call) -> Launch:
    """mul_mat_id_glu of few pairs."""
    gate, up, x, ids = (call.src(i) for i in range(4))
    dst, p = call.dst, call.node.params
    args = pack(_arguments(dst, gate, x, ids, call.optional(4)), up, call.optional(5),
                op_spec("mul_mat_id_glu").pack_params(p))  # fmt: skip
    if takes_glu(gate, up, x, dst.ne[1] * dst.ne[2], call.device):
        return glu_launch(call, args)
    grid, types = _vec(dst, gate, x, ROWS_OF_WARP // 2, up)
    kernel = Kernel("mul_mat_id_vec.cu", f"mul_mat_id_glu<{types}, {FUNCTOR[p['act']]}>")
    return Launch(kernel, grid, (32 * WARPS, 1, 1), args, dependent=True)


def _arguments(dst: Operand, w: Operand, x: Operand, ids: Operand, bias: Operand | None) -> bytes:
    """`IdArgs` of mul_mat_id.cuh."""
    return pack(dst, w, x, ids, bias, struct.pack("@i", _own_rows(dst, x)))


def product_launches(
    call: Call,
    dst: Operand,
    w: Operand,
    x: Operand,
    ids: Operand,
    bias: Operand | None,
    values: tuple[Tensor | None, ...],
) -> list[Launch]:
    """dst [m, u, n] = x's rows times the experts of their ids. values: what x and ids hold."""
    n_pairs, n, scratch = dst.ne[1] * dst.ne[2], w.ne[1], call.scratch
    if takes(w, x, n_pairs, call.device):
        return Experts([w], x, ids, scratch).launches(dst, [bias], values[1], call.device)
    if not _takes_tiles(w, x, n_pairs):
        return [vec_launch(dst, w, x, ids, bias)]
    args = _arguments(dst, w, x, ids, bias)
    rounded, scales, pairs, tiles, count, _ = (scratch + at for at in _layout(w, x, n_pairs))
    kind, width = "bf16" if w.dtype.name == "bf16" else "f16", _width(w, n_pairs)
    sort = pack(args, struct.pack("@3Pi", pairs, tiles, count, width))
    if kind == "bf16":
        scales = 0
    many = pack(args, struct.pack("@5P", pairs, tiles, count, rounded, scales))
    entry = f"mul_mat_id_tile<{cpp_type(w.dtype)}, {kind}, {width // 8}>"
    grid = (ceil_div(n, TILE_ROWS), _tiles(w, n_pairs), 1)
    assert values[0] is not None and values[0].owner.role is not Role.WEIGHT
    return [
        round_launch(kind, x, rounded, scales, values[0]),
        Launch(Kernel(_SOURCE, "mul_mat_id_sort"), (1, 1, 1), (1024, 1, 1), sort),
        Launch(Kernel(_SOURCE, entry), grid, (128, 1, 1), many),
    ]


def launches(call: Call) -> list[Launch]:
    w, x, ids = (call.src(i) for i in range(3))
    return product_launches(call, call.dst, w, x, ids, call.optional(3), call.node.srcs[1:3])


register(OPS, launches, supports=supports, scratch_bytes=scratch_bytes)
