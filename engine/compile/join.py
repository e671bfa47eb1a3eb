"""Products of one value as one op: its results are views of what that makes.

A rule of fusion replaces one value; here several become parts of one. It pays where a product is
a launch, and only where a row's parts lie together, so of single rows. What a backend computes
together though it is several ops is brought together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Graph, Role, Tensor, op_spec

JOINED = "mul_mat_joined"


def join_products(graph: Graph, supports: Callable[[Tensor], bool]) -> Graph:
    """Join what can be joined; the graph is consumed. supports: whether a node has a kernel."""
    groups: dict[tuple[Tensor, object], list[Tensor]] = defaultdict(list)
    outputs = {t.owner for t in graph.outputs}
    for node in graph.nodes:
        if node.op == "mul_mat" and node not in outputs and _is_row_of_weight(node):
            w, x = node.live_srcs()
            groups[x, w.dtype].append(node)
    most = op_spec(JOINED).n_srcs[1] - 2
    views: dict[Tensor, Tensor] = {}
    made: dict[Tensor, Tensor] = {}  # first of a group -> what replaces it
    gone: set[Tensor] = set()
    if not groups:
        return graph
    readers = _readers(graph)
    for (x, _), nodes in groups.items():
        for i in range(0, len(nodes), most):
            some = nodes[i : i + most]
            joined, norm = _joined(readers, x, some, supports) if len(some) > 1 else (None, None)
            if joined is None:
                continue
            made[some[0]] = joined
            gone.update(some)
            gone.update([norm] if norm is not None else [])
            views |= _views(joined, some)
    if not made:
        return graph
    graph.nodes = [made.get(n, n) for n in graph.nodes if n in made or n not in gone]
    for node in graph.nodes:
        node.srcs = tuple(_through(s, views) for s in node.srcs)
    return graph


def bring_together(graph: Graph) -> Graph:
    """Let what GELU makes of a normed row stand right before queries, keys and values of that row,
    if it came after them; the graph is consumed."""
    heads = {n.srcs[0]: n for n in graph.nodes if n.op == "norm_qkv_rope" and n.shape[0] == 1}
    moved: dict[Tensor, Tensor] = {}  # before which, what
    seen: set[Tensor] = set()
    for node in graph.nodes:
        seen.add(node)
        if node.op != "mul_mat_gelu":
            continue
        w, x, *bias = node.live_srcs()
        before = heads.get(x) if x.op == "layer_norm" else None
        given = all(s.owner.role is not Role.NODE for s in (w, *bias))
        if given and before in seen and before not in moved:
            moved[before] = node
    if moved:
        gone = set(moved.values())
        kept = (n for n in graph.nodes if n not in gone)
        graph.nodes = [n for k in kept for n in ([moved[k], k] if k in moved else [k])]
    return graph


def _is_row_of_weight(node: Tensor) -> bool:
    """A row times a weight, after which others begin at a multiple of 16 bytes."""
    w, x = node.live_srcs()
    if len(x.shape) != 2 or len(w.shape) != 2 or w.owner.role is not Role.WEIGHT:
        return False
    return x.shape[0] == 1 and w.shape[0] % 4 == 0


def _joined(
    readers: Counter[Tensor],
    x: Tensor,
    nodes: Sequence[Tensor],
    supports: Callable[[Tensor], bool],
) -> tuple[Tensor | None, Tensor | None]:
    """The node, and the norm that it takes along, if there is one that nobody else reads."""
    weights = [n.srcs[0] for n in nodes]
    shape, params = (1, sum(n.shape[1] for n in nodes)), op_spec(JOINED).bind_params({})
    plain = replace(nodes[0], op=JOINED, shape=shape, strides=(), params=params,
                    srcs=(x, None, *weights))  # fmt: skip
    if not supports(plain):
        return None, None
    if x.op == "rms_norm_mul" and readers[x] == len(nodes):
        normed = replace(plain, params=dict(x.params), srcs=(*x.srcs, *weights))
        if supports(normed):
            return normed, x
    return plain, None


def _readers(graph: Graph) -> Counter[Tensor]:
    """Uses of each value, by views of it as well."""
    read = [s for n in graph.nodes for s in n.live_srcs()]
    return Counter(o for s in (*read, *graph.outputs) for o in {s, s.owner})


def _views(joined: Tensor, nodes: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    views, at = {}, 0
    for n in nodes:
        views[n] = replace(n, role=Role.VIEW, op=None, params={}, srcs=(joined,), view_of=joined,
                           view_offset=at)  # fmt: skip
        at += n.nbytes
    return views


def _through(s: Tensor | None, views: dict[Tensor, Tensor]) -> Tensor | None:
    """The same value as a part of what was joined, views of it included."""
    if s is None or s in views:
        return None if s is None else views[s]
    if s.role is not Role.VIEW or s.view_of not in views:
        return s
    whole = views[s.view_of]
    return replace(s, srcs=tuple(_through(t, views) for t in s.srcs), view_of=whole.view_of,
                   view_offset=whole.view_offset + s.view_offset)  # fmt: skip
