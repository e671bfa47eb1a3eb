"""The feed-forward layers of a ReLU model, as its graph has them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import Graph, Tensor

FFN_PARTS = ("ffn_gate", "ffn_up", "ffn_down_t")  # the matrices with one row a neuron

_DOWN = re.compile(r"(?P<layer>blk\.(?P<index>\d+))\.ffn_down_t\.weight")
_RELUS = ("relu", "fatrelu")


@dataclass(frozen=True)
class ReluLayer:
    """relu(gate h) * up h, or relu(up h + bias), times down: a layer as it was recorded.

    index: of the layer. x, h: its input before and after the norm, f32 [m, n_embd]. picked: the
    rows of x that h has; None: all. first: the first node to replace, down the last one. gated:
    whether there is a gate, bias: whether up has one. relu_up: whether up goes through a ReLU too,
    beside a gate. cut: up to which value ReLU makes zero.
    """

    index: int
    x: Tensor
    h: Tensor
    picked: Tensor | None
    first: Tensor
    down: Tensor
    gated: bool
    bias: bool
    relu_up: bool
    cut: float

    @property
    def parts(self) -> tuple[str, ...]:
        """Its matrices."""
        return FFN_PARTS if self.gated else FFN_PARTS[1:]


def relu(g: Graph, x: Tensor, cut: float, name: str) -> Tensor:
    """x where it is above the cut, else 0."""
    return g.fatrelu(x, cut=cut, name=name) if cut else g.relu(x, name=name)


def gated(g: Graph, gate: Tensor, up: Tensor, relu_up: bool, cut: float, name: str) -> Tensor:
    """The neurons f32 [m, n], called `<name>_reglu`."""
    if relu_up:
        up = relu(g, up, cut, f"{name}_up_act")
    return g.mul(relu(g, gate, cut, f"{name}_act"), up, name=f"{name}_reglu")


def relu_layers(g: Graph) -> list[ReluLayer]:
    """The feed-forward layers whose down matrix has one row a neuron. Raises ValueError naming a
    layer that is not made of norm, up and down, with ReLU and maybe a gate."""
    return list(_found(g))


def layer_input(g: Graph, i: int) -> Tensor:
    """What layer i's matrices are multiplied with, whether it was made sparse or not."""
    up = g.leaves[f"blk.{i}.ffn_up.weight"]
    found = next(n for n in g.nodes if n.op in ("mul_mat", "mul_mat_sparse") and n.srcs[0] is up)
    assert found.srcs[1] is not None
    return found.srcs[1]


def _found(g: Graph) -> Iterator[ReluLayer]:
    for node in g.nodes:
        weight = node.srcs[0] if node.op == "axpy_sparse" else None
        found = _DOWN.fullmatch(weight.name) if weight is not None else None
        if found:
            yield _layer(int(found["index"]), node)


def _layer(index: int, down: Tensor) -> ReluLayer:
    hidden = down.srcs[1]
    is_gated = hidden is not None and hidden.op == "mul"
    act, up = _sources(hidden, "mul")[:2] if is_gated else (hidden, None)
    relu_up = up is not None and up.op in _RELUS
    up = _source(up, *_RELUS) if relu_up else up
    first = _source(act, *_RELUS)
    bias = not is_gated and first is not None and first.op == "add"
    first = _source(first, "add") if bias else first
    h, other = (_sources(t, "mul_mat")[-1:] for t in (first, up if is_gated else first))
    x, picked = _before_norm(h[0]) if h else (None, None)
    if act is None or first is None or h != other or x is None:
        raise ValueError(f"{down.name}: not a layer of norm, up and down with ReLU")
    cut = act.params.get("cut", 0.0)
    return ReluLayer(index, x, h[0], picked, first, down, is_gated, bias, relu_up, cut)


def _before_norm(h: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What was normed, and which rows of it h has."""
    picked = h.srcs[1] if h.op == "get_rows" else None
    norm = _source(h, "get_rows") if picked is not None else h
    rms = _source(norm, "mul")
    return _source(rms, "rms_norm") if rms is not None else _source(norm, "layer_norm"), picked


def _sources(t: Tensor | None, *ops: str) -> list[Tensor]:
    return t.live_srcs() if t is not None and t.op in ops else []


def _source(t: Tensor | None, *ops: str) -> Tensor | None:
    return next(iter(_sources(t, *ops)), None)
