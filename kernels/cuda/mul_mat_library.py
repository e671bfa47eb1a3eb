"""16-bit weights times many columns, with what stands around: a library multiplies, which adds in
the order of float_columns.cuh where that is one chain along k. Columns are rounded as for our own
kernels."""

from __future__ import annotations

from dataclasses import replace

from . import mul_mat_tma
from .columns import (
    GLU,
    PLAIN,
    QKV,
    ROWS,
    Layout,
    Product,
    arguments,
    columns_ok,
    layout,
    round_launch,
    rows_ok,
)
from .gemm import WORKSPACE_BYTES, Gemm, Matrix
from .launch import DeviceInfo, Kernel, Launch, ceil_div, places_of
from .mul_mat_rows import finish_launch, gate_launch

_LEAST = 17  # columns: fewer are our own kernels' or not these
_THREADS = 256


def _room(p: Product) -> tuple[list[int], int]:
    """Where in scratch memory the products' results lie, if not where they are to go, and what all
    takes beside the columns."""
    weights = p.weights if p.kind in (GLU, QKV) else ()
    *at, end = places_of((4 * p.m * w.ne[1] for w in weights), 256, WORKSPACE_BYTES)
    return at, end


def takes(p: Product, device: DeviceInfo) -> bool:
    t = p.weights[0].dtype
    return (
        device.is_hopper
        and p.m >= _LEAST
        and mul_mat_tma.parts_of(p, device) <= 1
        and not t.is_quantized
        and len({w.dtype for w in p.weights}) == 1
        and all(rows_ok(w, 16, 8) for w in p.weights)
        and columns_ok(p.x)
        and (p.kind == PLAIN or p.dst.is_dense)
    )


def in_order(p: Product, device: DeviceInfo) -> bool:
    """Whether the library adds in that order: of rows of other numbers it may have another one."""
    return takes(p, device) and all(w.ne[1] % 8 == 0 for w in p.weights)


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return layout(p, 1, _room(p)[1]).end


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch | Gemm]:
    """The launches of a product that `takes` takes."""
    places, end = _room(p)
    at, t = layout(p, 1, end, scratch), p.rounded
    scales = at.scales if t == "f16" else 0
    to = [at.parts + place for place in places]
    added = p.r is not None and p.r.ne == p.dst.ne and p.r.is_dense and not scales
    c = Matrix(p.r.address, p.n) if p.r is not None and added else None
    made: list[Launch | Gemm] = [round_launch(p, at, 1, ROWS)]
    for w, y in zip(p.weights, to or [p.dst.address], strict=True):
        d = Matrix(y, w.ne[1] if to else p.dst.nb[1] // 4)
        x, rows = Matrix(at.x, p.k), Matrix(w.address, w.nb[1] // 2)
        made.append(Gemm(t, "f32", w.ne[1], p.m, p.k, rows, x, d, at.parts, c, whole=True))
    if p.kind == GLU:
        gate, up = to
        # As the kernel of ours that other columns of these weights go to.
        rough = mul_mat_tma.parts_of(p, device) > 0
        made.append(gate_launch(p.dst, gate, up, "f32", scales, rough))
    elif p.kind == QKV:
        made.append(_turn_launch(p, to, at))
    elif scales or (p.r is not None and not added):
        made.append(finish_launch(p.dst, p.r, scales, added))
    return made


def _turn_launch(p: Product, to: list[int], at: Layout) -> Launch:
    """Queries, keys and values turned and stored."""
    pairs = sum(p.pairs)
    results = tuple(replace(w, address=y) for w, y in zip(p.weights, to, strict=True))
    args = arguments(replace(p, weights=results), at, pairs, 1, 0, 0, 0)
    grid = (p.m, ceil_div(pairs, _THREADS), 1)
    return Launch(Kernel("columns_turn.cu", "turn_columns"), grid, (_THREADS, 1, 1), args,
                  dependent=True)  # fmt: skip
