"""Launches qkv_heads.cu: what is done to queries, keys and values once their products are there."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from gguflow.engine.graph import Role, Tensor

from .launch import MAX_GRID_YZ, Call, Kernel, Launch, Operand, ceil_div, register
from .mul_mat_vec import STATES
from .rope import rope_numbers

OPS = ("qkv_heads",)
HEADS = 4  # of a block
MOST = 8  # packs of a lane
_SHARED = 48 << 10  # bytes that a block has anywhere


def _pack(hd: int, aligned: bool) -> int:
    """Elements that a lane has next to each other."""
    return 4 if aligned and hd % 4 == 0 else 1


def _packs(hd: int, pack: int) -> int:
    """How many packs of a head a lane has, as a power of two."""
    return 1 << (ceil_div(hd, 32 * pack) - 1).bit_length()


def _shared(hd: int, n_dims: int) -> int:
    return ceil_div(n_dims // 2, 2) * 16 + 4 * HEADS * hd


def takes(node: Tensor, pos: Tensor, rows: Tensor, states: Sequence[Tensor], aligned: bool) -> bool:
    """Whether the kernel takes the heads that a node results in. aligned: whether they can be read
    by fours."""
    hd = node.shape[2]
    return (
        _packs(hd, _pack(hd, aligned)) <= MOST
        and _shared(hd, node.params["n_dims"]) <= _SHARED
        and node.shape[0] <= MAX_GRID_YZ
        and node.params["mode"] in ("norm", "neox")
        and pos.is_contiguous
        and rows.is_contiguous
        and all(s.dtype.name in STATES for s in states)
    )


def supports(node: Tensor) -> bool:
    q, k, v, pos, rows, *states = (s for s in node.srcs[:7] if s is not None)
    beside = [Operand.of(s, s.view_offset) for s in node.srcs[8:] if s is not None]
    values = [Operand.of(t, t.view_offset) for t in (q, k, v)]
    one = v.shape[1] == 1 or v.strides[1] == 4 * v.shape[2]  # the kernel takes v's rows as one
    return one and takes(node, pos, rows, states, _aligned(values, beside))


def _aligned(values: Sequence[Operand], beside: Sequence[Operand]) -> bool:
    """Whether rows begin at multiples of 16 bytes and are of whole fours."""
    places = [b for o in values for b in (o.address, *o.nb[1:], 4 * o.ne[0])]
    return not any(p % 16 for p in (*places, *(o.address for o in beside)))


def launches(call: Call) -> list[Launch]:
    values = [call.src(i) for i in range(3)]
    rest = [call.optional(i) for i in range(3, 13)]
    return [launch(call.dst, values, rest, call.node.params, constant(call.node.srcs[7:]))]


def constant(srcs: Sequence[Tensor | None]) -> bool:
    """Whether no kernel writes these."""
    return all(s.owner.role is Role.WEIGHT for s in srcs if s is not None)


def launch(
    dst: Operand, values: Sequence[Operand], rest: Sequence[Operand | None],
    params: Mapping[str, Any], fixed: bool,
) -> Launch:  # fmt: skip
    """values: q, k and v by heads. rest: the other operands of qkv_heads, in their order.
    fixed: whether factors, biases and norms are constant."""
    p = dict(params)
    hd, _, m = values[0].ne[:3]
    pos, rows, *states = (o for o in rest[:4] if o is not None)
    beside = rest[4:10]
    address = [0 if o is None else o.address for o in beside]
    widths = [o.ne[0] * o.ne[1] for o in values]
    heads = [ceil_div(n, hd) for n in widths]
    steps = [o.nb[2] for o in values]
    apart = [values[0].nb[1], values[1].nb[1], 4 * hd]
    args = struct.pack(
        "@14P8q",
        *(o.address for o in values), *address[1:4], *address[4:6], address[0], pos.address,
        rows.address, dst.address, *(s.address for s in states),
        *(s.nb[1] for s in states), *(n // 4 for n in (*steps, *apart)),
    )  # fmt: skip
    args += rope_numbers(p, p["n_dims"]) + struct.pack(
        "@f13i", p["head_eps"], *heads, *widths, hd, p["n_dims"], p["mode"] == "neox",
        *(STATES.index(s.dtype.name) for s in states), states[0].ne[1], fixed,
    )  # fmt: skip
    pack = _pack(hd, _aligned(values, [o for o in beside[1:] if o is not None]))
    kernel = Kernel("qkv_heads.cu", f"qkv_heads<{pack}, {_packs(hd, pack)}>")
    grid = (ceil_div(sum(heads), HEADS), m, 1)
    shared = _shared(hd, p["n_dims"])
    return Launch(kernel, grid, (32 * HEADS, 1, 1), args, shared, dependent=True)


register(OPS, launches, supports=supports)
