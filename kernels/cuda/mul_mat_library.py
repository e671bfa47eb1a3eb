"""16-bit weights times many columns, with what stands around: a library multiplies, without parts
of k, which adds in the order of float_columns.cuh. Columns are rounded as for our own kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
from .launch import DeviceInfo, Kernel, Launch, ceil_div
from .mul_mat_rows import finish_launch, gate_launch

_LEAST = 17  # columns: fewer are our own kernels' or not these
_THREADS = 256


@dataclass(frozen=True)
class _Room:
    """Where the products' results lie, and what they need of scratch memory beside the columns."""

    places: tuple[int, ...]
    nbytes: int


def _room(p: Product) -> _Room:
    at = [WORKSPACE_BYTES]
    for w in p.weights if p.kind in (GLU, QKV) else ():
        at.append(at[-1] + ceil_div(4 * p.m * w.ne[1], 256) * 256)
    return _Room(tuple(at[:-1]), at[-1])


def takes(p: Product, device: DeviceInfo) -> bool:
    t = p.weights[0].dtype
    return (
        device.is_hopper
        and p.m >= _LEAST
        and not t.is_quantized
        and len({w.dtype for w in p.weights}) == 1
        and all(rows_ok(w, 16, 8) for w in p.weights)
        and columns_ok(p.x)
        and (p.kind == PLAIN or p.dst.is_dense)
    )


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return layout(p, 1, _room(p).nbytes).end


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch | Gemm]:
    """The launches of a product that `takes` takes."""
    room = _room(p)
    at, t = layout(p, 1, room.nbytes, scratch), p.rounded
    scales = at.scales if t == "f16" else 0
    to = [at.parts + place for place in room.places] or [p.dst.address]
    added = p.r is not None and not scales and p.r.ne == p.dst.ne and p.r.is_dense
    c = Matrix(p.r.address, p.n) if p.r is not None and added else None
    made: list[Launch | Gemm] = [round_launch(p, at, 1, ROWS)]
    for w, y in zip(p.weights, to, strict=True):
        rows = Matrix(w.address, w.nb[1] // 2)
        d = Matrix(y, p.dst.nb[1] // 4 if p.kind == PLAIN else w.ne[1])
        made.append(Gemm(t, "f32", w.ne[1], p.m, p.k, rows, Matrix(at.x, p.k), d, at.parts, c,
                         whole=True))  # fmt: skip
    if p.kind == GLU:
        gate, up = to
        made.append(gate_launch(p.dst, gate, up, "f32", scales))
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
