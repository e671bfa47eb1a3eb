"""Launches qkv_heads.cu: what is done to queries, keys and values once their products are there."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gguflow.engine.graph import Role, Tensor

from .launch import MAX_GRID_YZ, Call, Kernel, Launch, ceil_div
from .mul_mat_vec import STATES
from .rope import rope_numbers

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


def _aligned(widths: Sequence[int], addresses: Sequence[int]) -> bool:
    return not any(a % 16 for a in addresses) and not any(n % 4 for n in widths)


def supports(node: Tensor) -> bool:
    """Whether the kernel takes the heads of a norm_qkv_rope."""
    hd, states = node.shape[2], node.srcs[7:9]
    pos, rows = node.srcs[5:7]
    assert pos is not None and rows is not None
    widths = [w.shape[0] for w in node.srcs[2:5] if w is not None]
    aligned = _aligned(widths, [s.view_offset for s in node.srcs[10:] if s is not None])
    return (
        _packs(hd, _pack(hd, aligned)) <= MOST
        and _shared(hd, node.params["n_dims"]) <= _SHARED
        and node.shape[0] <= MAX_GRID_YZ
        and node.params["mode"] in ("norm", "neox")
        and pos.is_contiguous
        and rows.is_contiguous
        and all(s is not None and s.dtype.name in STATES for s in states)
    )


def launch(call: Call, products: Sequence[int]) -> Launch:
    """products: addresses of those of queries, keys and values, f32 [m, n] each."""
    node, p = call.node, dict(call.node.params)
    hd, m = node.shape[2], node.shape[0]
    widths = [call.src(i).ne[1] for i in (2, 3, 4)]
    heads = [ceil_div(n, hd) for n in widths]
    given = [call.optional(i) for i in range(9, 15)]
    address = [0 if o is None else o.address for o in given]
    states = [call.src(i) for i in (7, 8)]
    constant = all(s.owner.role is Role.WEIGHT for s in node.srcs[9:] if s is not None)
    args = struct.pack(
        "@14P2q",
        *products, *address[1:4], *address[4:6], address[0], call.src(5).address,
        call.src(6).address, call.dst.address, *(s.address for s in states),
        *(s.nb[1] for s in states),
    )  # fmt: skip
    args += rope_numbers(p, p["n_dims"]) + struct.pack(
        "@f13i", p["head_eps"], *heads, *widths, hd, p["n_dims"], p["mode"] == "neox",
        *(STATES.index(s.dtype.name) for s in states), states[0].ne[1], constant,
    )  # fmt: skip
    pack = _pack(hd, _aligned(widths, (*products, *address[1:])))
    kernel = Kernel("qkv_heads.cu", f"qkv_heads<{pack}, {_packs(hd, pack)}>")
    grid = (ceil_div(sum(heads), HEADS), m, 1)
    shared = _shared(hd, p["n_dims"])
    return Launch(kernel, grid, (32 * HEADS, 1, 1), args, shared, dependent=True)
