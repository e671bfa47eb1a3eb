"""A layer of experts in two parts: the hot ones, which a device keeps packed beside the whole
matrices on the host, and the others. Each part computes the chosen experts that are its own and
zeros for the rest; the parts' sums are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from gguflow.engine.compile import replace_values, sum_before
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.graph import I32, Graph, Role, Tensor
from gguflow.engine.load import ModelSource, WeightSource

HotIds = Mapping[int, np.ndarray]  # layer -> ids of its hot experts, strictly ascending
_WEIGHT = re.compile(r"blk\.(\d+)\.(ffn_\w+_exps)\.(\w+)")


@dataclass(frozen=True)
class ExpertLayer:
    """A layer as it was recorded.

    index: of the layer. ids: of the chosen experts, i32 [m, u]. nodes: what becomes of them, in
    order; the last is `total`, their sum by shares. weights: of the experts, that `nodes` read.
    """

    index: int
    ids: Tensor
    nodes: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]

    @property
    def total(self) -> Tensor:
        return self.nodes[-1]


def expert_layers(g: Graph) -> Iterator[ExpertLayer]:
    """The layers of experts of a graph that is not fused yet."""
    nodes: list[Tensor] = []  # from the products with experts' matrices on
    for node in g.nodes:
        made = (s for t in node.live_srcs() for s in (t, *_views(t)))
        if node.op != "mul_mat_id" and not any(s in nodes for s in made):
            continue
        nodes.append(node)
        if node.op != "moe_sum":
            continue
        ids = next(n for n in nodes if n.op == "mul_mat_id").live_srcs()[2]
        weights = tuple(s for n in nodes for s in n.live_srcs() if _WEIGHT.fullmatch(s.name))
        found = _WEIGHT.fullmatch(weights[0].name)
        assert found is not None
        yield ExpertLayer(int(found[1]), ids, tuple(nodes), weights)
        nodes = []


def _views(t: Tensor) -> Iterator[Tensor]:
    while t.role is Role.VIEW:
        (t,) = t.live_srcs()
        yield t


@dataclass(frozen=True, eq=False)
class HotExperts:
    """A rewrite: layers with hot experts are computed in two parts."""

    hot: HotIds

    def rewrite(self, g: Graph) -> None:
        swap = {}
        for layer in list(expert_layers(g)):
            if layer.index in self.hot:
                with g.scope(f"blk.{layer.index}"), g.scope("ffn"):
                    parts = [partial(_part, g, layer, name) for name in ("hot", "cold")]
                    swap[layer.total] = sum_before(g, layer.total, parts, "merge")
        replace_values(g, swap)


def _part(g: Graph, layer: ExpertLayer, name: str) -> Tensor:
    """The layer's nodes once more, over the experts of one part."""
    slots = g.leaves[f"blk.{layer.index}.{name}_slots"]
    new: dict[Tensor, Tensor] = {layer.ids: g.map_ids(layer.ids, slots, name=f"{name}_ids")}
    if name == "hot":
        new |= {w: g.leaves[hot_name(w.name)] for w in layer.weights}
    for node in layer.nodes:
        srcs = [None if s is None else _again(new, s) for s in node.srcs]
        last = node.name.rpartition(".")[2]
        new[node] = g.op(node.op or "", *srcs, name=f"{name}_{last}", **node.params)
    return new[layer.total]


def _again(new: Mapping[Tensor, Tensor], t: Tensor) -> Tensor:
    """A value in the part that is being made; of a view, the view of what is new."""
    if t in new:
        return new[t]
    if t.role is Role.VIEW and any(s in new for s in _views(t)):
        (s,) = t.live_srcs()
        made = _again(new, s)
        return replace(t, srcs=(made,), view_of=made.owner)
    return t


def hot_name(weight: str) -> str:
    """What a weight of the hot experts is called: `blk.N.ffn_up_exps.hot`, or `hot_bias`."""
    stem, _, kind = weight.rpartition(".")
    return f"{stem}.hot" if kind == "weight" else f"{stem}.hot_{kind}"


def expert_weights(source: ModelSource, layer: int) -> list[WeightSource]:
    """What a layer keeps of every expert, the first axis of each."""
    found = ((_WEIGHT.fullmatch(name), w) for name, w in source.weights.items())
    return [w for match, w in found if match is not None and int(match[1]) == layer]


def with_hot_experts(source: ModelSource, hot: HotIds) -> ModelSource:
    """The model with the hot experts' matrices beside the whole stacks, gathered when they are
    loaded, and with the tables that say where each expert lies."""
    weights = dict(source.weights)
    for i, ids in hot.items():
        n_experts = 0
        for w in expert_weights(source, i):
            n_experts = w.shape[0]
            name = hot_name(w.name)
            read = partial(_gather, w, ids)
            shape = (len(ids), *w.shape[1:])
            weights[name] = replace(w, name=name, shape=shape, read=read, release=_nothing)
        slots = np.full(n_experts, -1, np.int32)
        slots[ids] = np.arange(len(ids))
        others = np.where(slots < 0, np.arange(n_experts), -1).astype(np.int32)
        for part, table in (("hot", slots), ("cold", others)):
            name = f"blk.{i}.{part}_slots"
            weights[name] = WeightSource(name, I32, table.shape, partial(_raw, table), _nothing)
    return replace(source, weights=weights)


def _gather(w: WeightSource, ids: np.ndarray) -> np.ndarray:
    return w.read().reshape(w.shape[0], -1)[ids].reshape(-1)


def _raw(table: np.ndarray) -> np.ndarray:
    return table.view(np.uint8)


def _nothing() -> None:
    """The whole stack, whose pages these are, is in use on the host."""
