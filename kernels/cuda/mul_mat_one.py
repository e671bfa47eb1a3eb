"""Launches mul_mat_one.cu: one column times quantized weights, with the bits that it has among up
to 16, where that is asked for (`DeviceInfo.equal_bits`): mul_mat_vec.cu is faster."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from gguflow.engine.graph import DType

from .columns import KINDS, PLAIN, Layout, Product, arguments, columns_ok, rows_ok
from .columns_int8 import known
from .launch import DeviceInfo, Kernel, Launch, ceil_div, cpp_type, places_of
from .one_column import WARPS, blocks_of, shape_of

_ROWS, _CHUNK = 2, 256  # rows of a stage; elements whose squares are added first
_PIECE = 2048  # elements
_UNIT, _UNIT_BYTES = 64, 80  # of a column in shared memory
_MAX_STAGES = 4  # more on their way delay the column, which queues behind them
_NO_ROPE = bytes(40)


@dataclass(frozen=True)
class _Plan:
    """How shared memory is used. places: of what lies there, in the order of `OneArgs`; the last is
    that of the ring, whose stages take `stage` bytes each."""

    warps: int
    stages: int
    places: tuple[int, ...]
    stage: int

    @property
    def shared(self) -> int:
        return self.places[-1] + self.stages * self.stage


def _piece_bytes(t: DType) -> int:
    return _PIECE // t.block * t.nbytes


def _pieces(p: Product) -> int:
    """Of a row."""
    return ceil_div(p.k, _PIECE)


def _plan(p: Product, device: DeviceInfo) -> _Plan | None:
    plans = (_plan_of(p, device, warps) for warps in WARPS)
    found = next((plan for plan in plans if plan.stages >= 2), None)
    return found and _shaped(found, p, device)


def _shaped(plan: _Plan, p: Product, device: DeviceInfo) -> _Plan:
    """What `shape_of` says of one matrix by itself."""
    if p.kind != PLAIN:
        return plan

    def shaped(warps: int, stages: int) -> _Plan:
        return replace(_plan_of(p, device, warps), stages=stages)

    shape = shape_of(
        plan.warps, plan.stages, sum(p.pairs), _pieces(p),
        lambda w, s: shaped(w, s).shared, device,
    )  # fmt: skip
    return shaped(*shape)


def _plan_of(p: Product, device: DeviceInfo, warps: int) -> _Plan:
    whole = _pieces(p) * _PIECE  # elements of a column in shared memory
    sizes = (
        8 * warps * _MAX_STAGES,
        4 * p.heads.head_dim if p.heads else 0,
        4 * ceil_div(p.k, _CHUNK),
        4 * _ROWS * warps * whole // _CHUNK,
        whole // _UNIT * _UNIT_BYTES,
    )
    places = places_of(sizes, 16)
    stage = warps * (_ROWS * max(_piece_bytes(w.dtype) for w in p.weights) + 16)
    stages = min(_MAX_STAGES, max(0, device.shared_per_block - places[-1]) // stage)
    return _Plan(warps, stages, tuple(places[1:]), stage)


def takes(p: Product, device: DeviceInfo) -> bool:
    return (
        device.equal_bits
        and device.is_hopper
        and p.m == 1
        and all(known(w.dtype) and rows_ok(w, 16, _CHUNK) for w in p.weights)
        and all(w.nb[1] < 1 << 31 for w in p.weights)
        and columns_ok(p.x)
        and _plan(p, device) is not None
    )


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return 0


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launches of a product that `takes` takes."""
    plan = _plan(p, device)
    assert plan is not None
    first, last = p.weights[0].dtype, p.weights[-1].dtype
    pairs = sum(p.pairs)
    heads = p.heads
    body = arguments(p, Layout(), pairs, 1, plan.stages, 0, 0)
    body += struct.pack(
        "@4P", p.x.address, p.norm.address if p.norm else 0, heads.pos.address if heads else 0,
        heads.factors.address if heads and heads.factors else 0,
    ) + (heads.rope if heads else _NO_ROPE)  # fmt: skip
    body += struct.pack("@f7i", p.eps, p.weights[-1].nb[1], _pieces(p), *plan.places)
    kernel = Kernel(
        "mul_mat_one.cu", f"mul_mat_one<{KINDS[p.kind]}, {cpp_type(first)}, {cpp_type(last)}>"
    )
    grid = (blocks_of(pairs, plan.warps, p.kind == PLAIN, device), 1, 1)
    block = (32 * plan.warps, 1, 1)
    return [Launch(kernel, grid, block, body, plan.shared, dependent=True)]
