"""Launches the products that begin with a norm: by mul_mat_vec.cu for a few columns, by the kernels
of Hopper for more, and elsewhere as the ops that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gguflow.engine.graph import Graph, Role, Tensor

from . import launch, mul_mat_batch, mul_mat_vec
from .gemm import Gemm
from .launch import Call, DeviceInfo, Launch, Operand, ceil_div, register

OPS = ("norm_mul_mat", "norm_mul_mat_swiglu", "norm_qkv_rope")
MOST_EQUAL = 1 << 16  # columns of fused ops where bits may not depend on their number


def supports(node: Tensor) -> bool:
    """Also many columns of types that the kernels for many columns know."""
    return _supports(node, 2, mul_mat_batch.MOST)


def supports_equal(node: Tensor) -> bool:
    """Also one column that mul_mat_vec.cu does not take, and any number."""
    return _supports(node, 1, MOST_EQUAL)


def _supports(node: Tensor, least: int, most: int) -> bool:
    """least, most: columns of which the kernels of Hopper may take them."""
    if mul_mat_vec.supports(node):
        return True
    if len(node.srcs[0].shape if node.srcs[0] else ()) != 2:
        return False
    weights = node.live_srcs()[2:5] if node.op == "norm_qkv_rope" else node.live_srcs()[2:]
    many = least <= node.live_srcs()[0].shape[0] <= most
    known = all(w.dtype.is_quantized or w.dtype.name in mul_mat_vec.FLOATS for w in weights)
    return many and known and (node.op != "norm_qkv_rope" or mul_mat_vec.supports_heads(node))


def _by_vec(node: Tensor, device: DeviceInfo, most: int | None) -> bool:
    """Whether mul_mat_vec.cu takes it, and `most` or, for None, the fastest for its columns."""
    m = node.live_srcs()[0].shape[0]
    if m > mul_mat_vec.FEW or not mul_mat_vec.supports(node):
        return False
    if most is None:
        srcs = [None if s is None else Operand.of(s, s.view_offset) for s in node.srcs]
        most = mul_mat_batch.vec_most(node, srcs, device)
    return m <= most


@dataclass
class _Parts:
    """The ops that a node is made of, and where in scratch memory their results lie."""

    nodes: list[Tensor] = field(default_factory=list)
    places: dict[Tensor, int] = field(default_factory=dict)
    end: int = 0

    def keep(self, t: Tensor) -> Tensor:
        self.nodes.append(t)
        self.places[t] = self.end
        self.end += ceil_div(t.nbytes, 256) * 256
        return t


def _parts(node: Tensor) -> tuple[_Parts, Tensor]:
    """And the one that makes the node's own result."""
    g, made, p = Graph(), _Parts(), dict(node.params)
    x, norm, *rest = node.srcs
    h = made.keep(g.op("rms_norm_mul", x, norm, eps=p["eps"]))
    if node.op != "norm_qkv_rope":
        assert node.op is not None
        last = g.op(node.op.removeprefix("norm_"), *rest, h)
        made.nodes.append(last)
        return made, last
    wq, wk, wv, pos, rows, k_state, v_state, *factors = rest
    rope = {name: v for name, v in p.items() if name not in ("eps", "head_dim")}

    def turned(w: Tensor | None) -> Tensor:
        heads = made.keep(g.op("mul_mat", w, h))
        shape = h.shape[0], heads.shape[1] // p["head_dim"], p["head_dim"]
        return g.op("rope", g.reshape(heads, shape), pos, *factors, **rope)

    q, k = turned(wq), made.keep(turned(wk))
    made.nodes.append(q)
    v = made.keep(g.op("mul_mat", wv, h))
    flat = g.reshape(k, (k.shape[0], k.shape[1] * k.shape[2]))
    made.nodes += [g.op("set_rows", k_state, flat, rows), g.op("set_rows", v_state, v, rows)]
    return made, q


def scratch_bytes(node: Tensor, device: DeviceInfo, most: int | None = None) -> int:
    if _by_vec(node, device, most):
        return 0
    srcs = [None if s is None else Operand.of(s, s.view_offset) for s in node.srcs]
    if mul_mat_batch.applies(node, srcs, device):
        return mul_mat_batch.scratch_bytes(node, device)
    if _by_vec(node, device, mul_mat_vec.FEW):
        return 0
    made, _ = _parts(node)
    return made.end + max(launch.scratch_bytes(t, device) for t in made.nodes)


def launches(call: Call, most: int | None = None) -> list[Launch | Gemm]:
    """most: up to so many columns mul_mat_vec.cu; None: while it is fastest."""
    node, device = call.node, call.device
    if _by_vec(node, device, most):
        return [*mul_mat_vec.launches(call)]
    if mul_mat_batch.applies(node, call.srcs, device):
        return [*mul_mat_batch.launches(call)]
    if _by_vec(node, device, mul_mat_vec.FEW):
        return [*mul_mat_vec.launches(call)]
    return by_parts(call, launch.launches)


def by_parts(
    call: Call, launches_of: Callable[[Call], Sequence[Launch | Gemm]]
) -> list[Launch | Gemm]:
    """The launches of the ops that a node is made of."""
    node, device = call.node, call.device
    made, last = _parts(node)
    given = {s: o for s, o in zip(node.srcs, call.srcs, strict=True) if s is not None}

    def operand(t: Tensor | None) -> Operand | None:
        if t is None or t in given:
            return None if t is None else given[t]
        if t is last:
            return Operand.of(t, call.dst.address)
        if t.op == "set_rows":
            return Operand.of(t, call.src(node.srcs.index(t.srcs[0])).address)
        return Operand.of(t, call.scratch + made.places[t.owner] + t.view_offset)

    found: list[Launch | Gemm] = []
    for t in made.nodes:
        dst = operand(t)
        assert dst is not None and t.role in (Role.NODE, Role.VIEW)
        srcs = tuple(map(operand, t.srcs))
        found += launches_of(Call(t, dst, srcs, device, call.scratch + made.end))
    return found


register(
    OPS, launches, supports=supports, supports_equal=supports_equal, scratch_bytes=scratch_bytes
)
