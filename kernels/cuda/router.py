"""Launches router.cu: norm, router, choice and shares of few tokens, four ops, as one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from gguflow.engine.graph import Tensor, op_spec

from .launch import (
    Call,
    Kernel,
    Launch,
    Operand,
    ceil_div,
    cpp_type,
    may_run_at_once,
    pack,
    register_joint,
)
from .norm import by_fours

MOST = 16  # tokens, kMostTokens
_WARPS = 8
_MOST_SHARED = 48 << 10
_FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class _Router:
    """The calls that are taken together. norm: None where the router sees x as it is."""

    norm: Call | None
    product: Call
    route: Call
    shares: Call

    @property
    def calls(self) -> list[Call]:
        found = (self.norm, self.product, self.route, self.shares)
        return [c for c in found if c is not None]

    @property
    def x(self) -> Operand:
        """What is read: before the norm, if there is one."""
        return self.norm.src(0) if self.norm else self.product.src(1)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        n, k, p = self.product.dst.ne[0], self.x.ne[0], self.route.node.params
        return 4 * max(k, 2 * n + 2 * p["n_group"] + p["n_used"])


def _is(node: Tensor | None, made: Call) -> bool:
    return node is made.node


def _found(calls: Sequence[Call]) -> _Router | None:
    """The router that these calls begin with."""
    norm = calls[0] if calls[0].node.op == "rms_norm_mul" else None
    rest = calls[1 if norm else 0 :]
    if len(rest) < 3 or [c.node.op for c in rest[1:3]] != ["route", "route_weights"]:
        return None
    product, route, shares = rest[:3]
    if product.node.op not in ("mul_mat", "mul_mat_add"):
        return None
    chained = (
        (norm is None or _is(product.node.srcs[1], norm))
        and _is(route.node.srcs[0], product)
        and _is(shares.node.srcs[0], product)
        and _is(shares.node.srcs[1], route)
        and shares.node.params["score"] == route.node.params["score"]
    )
    return _Router(norm, product, route, shares) if chained else None


def _takes(r: _Router) -> bool:
    w, x, bias = r.product.src(0), r.x, r.product.optional(2)
    k, n = w.ne[:2]
    m = x.ne[1]
    step = 4 if w.dtype.name == "f32" else 8
    weights = r.norm.src(1) if r.norm else None
    flat = all(o.ne[2] == o.ne[3] == 1 for o in (w, x, r.product.dst))
    if w.dtype.name not in _FLOATS or not flat or m > MOST or r.shared > _MOST_SHARED:
        return False
    if k % step or w.nb[0] != w.dtype.nbytes or w.address % 16 or w.nb[1] % 16:
        return False
    if bias is not None and (bias.ne != (n, 1, 1, 1) or bias.nb[0] != 4):
        return False
    rows = [x, *([r.norm.dst] if r.norm else [])]
    if not by_fours(*rows, weights) or any(o.nb[0] != 4 for o in rows):
        return False
    return may_run_at_once(r.calls)


def _arguments(r: _Router) -> bytes:
    """`RouterArgs` of router.cu."""
    w, x, bias = r.product.src(0), r.x, r.product.optional(2)
    normed, chosen_by = r.norm.dst if r.norm else x, r.route.optional(1)
    rows = (x, normed, w, r.product.dst, r.route.dst, r.shares.dst)
    steps = [o.nb[1] if o is w else o.nb[1] // 4 for o in rows]
    return pack(
        struct.pack(
            "@9P6q2if", x.address, r.norm.src(1).address if r.norm else 0, normed.address,
            w.address, bias.address if bias else 0, r.product.dst.address,
            chosen_by.address if chosen_by else 0, r.route.dst.address, r.shares.dst.address,
            *steps, *w.ne[:2], r.norm.node.params["eps"] if r.norm else 0.0,
        ),
        op_spec("route").pack_params(r.route.node.params),
        op_spec("route_weights").pack_params(r.shares.node.params),
    )  # fmt: skip


def joint(calls: Sequence[Call]) -> list[list[Launch]] | None:
    r = _found(calls)
    if r is None or not _takes(r):
        return None
    w = r.product.src(0)
    grid = (ceil_div(w.ne[1], _WARPS), r.x.ne[1], 1)
    kernel = Kernel("router.cu", f"router<{cpp_type(w.dtype)}>")
    block = (32 * _WARPS, 1, 1)
    launch = Launch(kernel, grid, block, _arguments(r), r.shared, dependent=True)
    return [[launch], *([] for _ in r.calls[1:])]


register_joint(("rms_norm_mul", "mul_mat", "mul_mat_add"), joint)
