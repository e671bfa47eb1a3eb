"""Launches the products that begin with a norm: by mul_mat_vec.cu for a few columns, by the kernels
of Hopper for more, and elsewhere as the ops that they are made of.

Queries, keys and values that are turned as they are, whole, are finished by their products. Where
there are biases, norms of heads or dimensions that pass through, or where these kernels do not take
the products, these go to scratch memory and qkv_heads.cu does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType

from gguflow.engine.graph import F32, Graph, Role, Tensor, op_spec

from . import launch, mul_mat, mul_mat_batch, mul_mat_vec, qkv_heads
from .gemm import Gemm
from .launch import Call, DeviceInfo, Launch, Operand, ceil_div, register

OPS = ("norm_mul_mat", "norm_mul_mat_swiglu", "norm_qkv_rope")
_QKV = "norm_qkv_rope"
MOST_EQUAL = 1 << 20  # columns of fused ops where bits may not depend on their number


def supports(node: Tensor) -> bool:
    """Also many columns of types that the kernels for many columns know."""
    return _supports(node, 2)


def supports_equal(node: Tensor) -> bool:
    """Also one column that mul_mat_vec.cu does not take, and any number."""
    return _supports(node, 1, MOST_EQUAL)


def _supports(node: Tensor, least: int, most: int | None = None) -> bool:
    """least, most: columns of which the kernels of Hopper may take them; None: while they are the
    fastest."""
    if node.op == _QKV:
        return _supports_heads(node)
    if mul_mat_vec.supports(node):
        return True
    if len(node.srcs[0].shape if node.srcs[0] else ()) != 2:
        return False
    weights = node.live_srcs()[2:]
    most = min(mul_mat_batch.most_of(w.dtype) for w in weights) if most is None else most
    many = least <= node.live_srcs()[0].shape[0] <= most
    return many and all(w.dtype.is_quantized or w.dtype.name in mul_mat_vec.FLOATS for w in weights)


def _supports_heads(node: Tensor) -> bool:
    """Whether qkv_heads.cu takes what the products leave."""
    wq, wk, wv, pos, rows, *states = (s for s in node.srcs[2:9] if s is not None)
    beside = [s.view_offset for s in node.srcs[10:] if s is not None]
    aligned = not any(p % 16 for p in (*(4 * w.shape[0] for w in (wq, wk, wv)), *beside))
    return qkv_heads.takes(node, pos, rows, states, aligned and node.shape[2] % 4 == 0)


def _heads_launch(call: Call, places: Sequence[int], row: int = 0) -> Launch:
    """places: of the products of queries, keys and values. row: bytes from token to token; 0: their
    own."""
    hd, m = call.node.shape[2], call.node.shape[0]
    widths = [call.src(i).ne[1] for i in (2, 3, 4)]
    values = []
    for i, (n, at) in enumerate(zip(widths, places, strict=True)):
        one = n if i == 2 else hd
        strides = row or 4 * n, 4 * one, 4
        t = Tensor("", F32, (m, n // one, one), Role.NODE, strides)
        values.append(Operand.of(t, at))
    rest = [call.optional(i) for i in range(5, 15)]
    fixed = qkv_heads.constant(call.node.srcs[9:])
    return qkv_heads.launch(call.dst, values, rest, call.node.params, fixed)


def _by_vec(node: Tensor, device: DeviceInfo, most: int | None) -> bool:
    """Whether mul_mat_vec.cu takes it, and `most` or, for None, the fastest for its columns."""
    m = node.live_srcs()[0].shape[0]
    if m > mul_mat_vec.FEW or not mul_mat_vec.supports(node):
        return False
    if most is None:
        most = mul_mat_batch.vec_most(node, _operands(node), device)
    return m <= most


def _operands(node: Tensor) -> list[Operand | None]:
    return [None if s is None else Operand.of(s, s.view_offset) for s in node.srcs]


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


def _parts(node: Tensor) -> tuple[_Parts, list[Tensor]]:
    """And those that make the node's own result, or its products of queries, keys and values."""
    g, made, p = Graph(), _Parts(), dict(node.params)
    x, norm, *rest = node.srcs
    h = x if norm is None else made.keep(g.op("rms_norm_mul", x, norm, eps=p["eps"]))
    if node.op == _QKV:
        last = [made.keep(g.op("mul_mat", w, h)) for w in rest[:3]]
    else:
        assert node.op is not None
        last = [g.op(node.op.removeprefix("norm_"), *rest, h)]
        last[0].strides = node.strides
        made.nodes += last
    for t in last:
        t.n_single = node.n_single
    return made, last


def _products(node: Tensor) -> tuple[Tensor | None, _Parts]:
    """The node whose launches make the products of `node`, None for the ops by themselves; and what
    these leave for qkv_heads.cu: nothing where they finish it, which is then the node itself."""
    kept = _Parts()
    done = not any(node.srcs[10:]) and node.params.get("n_dims") == node.shape[-1]
    if node.op != _QKV or (done and mul_mat_vec.supports_heads(node)):
        return node, kept
    x, _, *weights = node.srcs[:5]
    rows = [w.shape[0] for w in weights if w is not None]
    assert x is not None
    m = x.shape[0]
    q, k, v = (kept.keep(Tensor("", F32, (m, n), Role.STATE)) for n in rows)
    if any(n % 2 for n in rows):
        return None, kept
    # Pairs of neighbours turned by no angle; states whose rows are the tokens.
    params = {"eps": node.params["eps"], "head_dim": 2, "n_dims": 2, "mode": "norm"}
    params = op_spec(_QKV).bind_params({**params, "freq_scale": 0.0})
    srcs = (*node.srcs[:7], k, v)
    made = replace(node, shape=(m, rows[0] // 2, 2), strides=(), srcs=srcs, params=params)
    return made, kept


def _way(
    node: Tensor | None, srcs: Sequence[Operand | None], device: DeviceInfo, most: int | None
) -> ModuleType | None:
    """The launch file that makes a node, or None: the ops that it is made of."""
    if node is None:
        return None
    if _by_vec(node, device, most):
        return mul_mat_vec
    if mul_mat_batch.applies(node, srcs, device):
        return mul_mat_batch
    return mul_mat_vec if _by_vec(node, device, mul_mat_vec.FEW) else None


def scratch_bytes(node: Tensor, device: DeviceInfo, most: int | None = None) -> int:
    products, kept = _products(node)
    way = _way(products, _operands(products) if products else [], device, most)
    if way is None or products is None:
        made, _ = _parts(node)
        return made.end + max(launch.scratch_bytes(t, device) for t in made.nodes)
    if way is mul_mat_vec:
        return kept.end
    return kept.end + mul_mat_batch.scratch_bytes(products, device)


def rounds_to(node: Tensor, device: DeviceInfo) -> str | None:
    """As `launch.rounds_to`: of queries, keys and values without a norm of their own."""
    products, _ = _products(node)
    if products is None or products.srcs[1] is not None:
        return None
    srcs = _operands(products)
    if _way(products, srcs, device, None) is not mul_mat_batch:
        return None
    return mul_mat_batch.rounds_to(products, srcs, device)


def strided(node: Tensor, device: DeviceInfo) -> bool:
    """As `launch.supports_strides`."""
    if node.op != "norm_mul_mat" or len(node.shape) != 2:
        return False
    if _way(node, _operands(node), device, None) is None:
        _, (product,) = _parts(node)
        return mul_mat.strided(product, device)
    return mul_mat.has_float_rows(node)


def launches(call: Call, most: int | None = None) -> list[Launch | Gemm]:
    """most: up to so many columns mul_mat_vec.cu; None: while it is fastest."""
    node, device = call.node, call.device
    products, kept = _products(node)
    places = [call.scratch + at for at in kept.places.values()]
    mine = call
    if products is not None and products is not node:
        q, k, v = map(Operand.of, kept.nodes, places)
        srcs = (*call.srcs[:6], replace(call.src(6), address=0), k, v)
        dst = Operand.of(products, q.address)
        mine = Call(products, dst, srcs, device, call.scratch + kept.end, call.rounded)
    if products is node and most is None and (compact := mul_mat_batch.compact_launches(call)):
        return [*compact]
    way = _way(products, mine.srcs, device, most)
    if way is None:
        return by_parts(call, launch.launches)
    if way is mul_mat_vec and products is not node:
        return [*_joined(call)]
    made: list[Launch | Gemm] = list(way.launches(mine))
    return made if products is node else [*made, _heads_launch(call, places)]


def _joined(call: Call) -> list[Launch]:
    """Products by mul_mat_vec.cu, those of a token after each other, and what follows."""
    weights = [call.src(i) for i in (2, 3, 4)]
    first = 0, weights[0].ne[1], weights[0].ne[1] + weights[1].ne[1]
    m, row = call.node.shape[0], sum(w.ne[1] for w in weights)
    dst = Operand.of(Tensor("", F32, (m, row), Role.NODE), call.scratch)
    norm, eps = call.optional(1), call.node.params["eps"]
    products = mul_mat_vec.joined_few(call.device, dst, weights, call.src(0), norm, eps)
    return [products, _heads_launch(call, [call.scratch + 4 * n for n in first], 4 * row)]


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
        if t in made.places:
            return Operand.of(t, call.scratch + made.places[t])
        return Operand.of(t, call.dst.address)

    found: list[Launch | Gemm] = []
    left: Launch | None = None  # what the scratch memory of the ops begins with
    for t in made.nodes:
        dst = operand(t)
        assert dst is not None and t.role is Role.NODE
        srcs = tuple(map(operand, t.srcs))
        op = list(launches_of(Call(t, dst, srcs, device, call.scratch + made.end)))
        first = op[0] if isinstance(op[0], Launch) and op[0].leaves is not None else None
        if first is not None and first == left:
            del op[0]
        left = first
        found += (replace(s, leaves=None) if isinstance(s, Launch) else s for s in op)
    if node.op == _QKV:
        found.append(_heads_launch(call, [call.scratch + made.places[t] for t in last]))
    return found


register(
    OPS, launches, supports=supports, supports_equal=supports_equal, scratch_bytes=scratch_bytes,
    rounds_to=rounds_to, strided=strided,
)  # fmt: skip
