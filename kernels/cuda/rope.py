"""Launches rope.cu; what does not depend on the data is computed here, in double."""

from __future__ import annotations

import math
import struct
from typing import Any

from gguflow.engine.graph import Role, Tensor

from .launch import MAX_GRID_YZ, Call, Kernel, Launch, ceil_div, pack, register

OPS = ("rope",)
MODES = ("norm", "neox", "2d")
BLOCK_X, BLOCK_Y = 32, 4  # pairs and heads


def yarn_range(n_dims: int, p: dict[str, float]) -> tuple[float, float]:
    """The pairs between which YaRN blends (Peng et al. 2023, section 3.2), in units of pairs."""

    def pair(turns: float) -> float:
        wavelengths = p["n_ctx_orig"] / (turns * 2 * math.pi)
        return n_dims * math.log(wavelengths) / (2 * math.log(p["freq_base"]))

    low, high = pair(p["beta_fast"]), pair(p["beta_slow"])
    if p["whole_pairs"]:
        low, high = math.floor(low), math.ceil(high)
    return max(0.0, low), min(n_dims - 1.0, high)


def rope_numbers(p: dict[str, Any], n_dims: int) -> bytes:
    """`RopeNumbers` of rope.cuh from the parameters of rope, for n_dims rotated together."""
    low = high = 0.0
    magnitude = p["attn_factor"]
    if p["ext_factor"] != 0:
        low, high = yarn_range(n_dims, p)
        magnitude *= 1 + 0.1 * math.log(1 / p["freq_scale"])
    log2_step = math.log2(p["freq_base"]) * -2 / n_dims
    return struct.pack("@3d3f4x", log2_step, low, high, p["freq_scale"], p["ext_factor"], magnitude)


def supports(node: Tensor) -> bool:
    return node.shape[0] <= MAX_GRID_YZ


def launches(call: Call) -> list[Launch]:
    x, p = call.src(0), dict(call.node.params)
    parts = 2 if p["mode"] == "2d" else 1
    numbers = rope_numbers(p, p["n_dims"] // parts)
    constant = all(t.owner.role is Role.WEIGHT for t in call.node.live_srcs()[2:])
    numbers += struct.pack("@3i", p["n_dims"], MODES.index(p["mode"]), constant)
    hd, n_head, n_tok = x.ne[:3]
    n_work = p["n_dims"] // 2 + hd - p["n_dims"]
    # For one token every head gets its own thread; for a prompt a thread serves several heads.
    z = min(ceil_div(n_head, BLOCK_Y), max(1, 1024 // n_tok), MAX_GRID_YZ)
    grid = (ceil_div(n_work, BLOCK_X), n_tok, z)
    args = pack(call.dst, x, call.src(1), call.optional(2), numbers)
    block = (BLOCK_X, BLOCK_Y, 1)
    return [Launch(Kernel("rope.cu", "rope"), grid, block, args, dependent=True)]


register(OPS, launches, supports=supports)
