"""Launches route.cu."""

from __future__ import annotations

from collections.abc import Sequence

from gguflow.engine.graph import Tensor, op_spec

from .launch import Call, Kernel, Launch, apart, ceil_div, pack, register, register_joint

OPS = ("route", "route_weights")
WARPS = 4  # rows of a block
MOST_SHARED = 48 << 10


def _shared(node: Tensor) -> int:
    """Bytes of the scores of a block's rows."""
    n = node.live_srcs()[0].shape[1]
    return 4 * WARPS * (n + 2 * node.params.get("n_group", 0))


def supports(node: Tensor) -> bool:
    return _shared(node) <= MOST_SHARED


def launches(call: Call) -> list[Launch]:
    op = call.node.op or ""
    second = call.optional(1)
    args = pack(call.dst, call.src(0), second, op_spec(op).pack_params(call.node.params))
    return [_launch(call, op, args, _shared(call.node))]


def _launch(call: Call, entry: str, args: bytes, shared: int) -> Launch:
    grid, block = (ceil_div(call.dst.ne[1], WARPS), 1, 1), (32 * WARPS, 1, 1)
    return Launch(Kernel("route.cu", entry), grid, block, args, shared, dependent=True)


def joint(calls: Sequence[Call]) -> list[list[Launch]] | None:
    """The choice and the shares of the same logits."""
    if len(calls) < 2 or calls[1].node.op != "route_weights":
        return None
    route, shares = calls[:2]
    p, how = route.node.params, shares.node.params
    logits, bias = route.src(0), route.optional(1)
    if not (shares.node.srcs[0] is route.node.srcs[0] and shares.node.srcs[1] is route.node):
        return None
    nbytes = _shared(route.node) + 4 * WARPS * (logits.ne[0] + p["n_used"])
    read = [logits, *([] if bias is None else [bias])]
    results = [(route.dst, shares.dst), *((d, o) for d in (route.dst, shares.dst) for o in read)]
    if p["score"] != how["score"] or nbytes > MOST_SHARED or not all(apart(*r) for r in results):
        return None
    args = pack(
        route.dst, logits, bias, op_spec("route").pack_params(p),
        shares.dst, op_spec("route_weights").pack_params(how),
    )  # fmt: skip
    return [[_launch(route, "route_both", args, nbytes)], []]


register(OPS, launches, supports=supports)
register_joint(("route",), joint)
