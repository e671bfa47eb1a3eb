"""Where a model's tensors are cut: decided once, and kept for all of its graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from gguflow.engine.compile.shares import shares
from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import Graph, Role, Tensor

from .axes import Axes

# Rows of a weight that is read here and there are joined by an exchange between the devices, in the
# time of which a device reads so many bytes.
EXCHANGE_BYTES = 8 << 20

Bounds = tuple[int, ...]  # where the parts of an axis begin, and its end: n_devices + 1


@dataclass(frozen=True)
class Cut:
    """One axis of a tensor in parts. joined: the product with these rows is put together again."""

    axis: int
    bounds: Bounds
    joined: bool = False

    def shape(self, whole: Sequence[int], part: int) -> tuple[int, ...]:
        """Of a part of a tensor of that shape."""
        shape = list(whole)
        shape[self.axis] = self.bounds[part + 1] - self.bounds[part]
        return tuple(shape)


@dataclass(frozen=True)
class Cuts:
    """The cuts of weights, by name, and how many devices there are.

    whole: names of weight matrices that every device reads all of, with why.
    """

    n: int
    weights: Mapping[str, Cut]
    whole: Mapping[str, str]


def part_name(name: str, device: int) -> str:
    """What a device's part, or copy, of a tensor is called."""
    return f"{name}@{device}"


def bounds_of(size: int, pieces: int, ratios: Sequence[float]) -> Bounds:
    """Where the parts of an axis of `size` elements begin, and its end."""
    return tuple(size // pieces * b for b in shares(pieces, ratios))


def decide(g: Graph, ratios: Sequence[float], least: int = EXCHANGE_BYTES) -> Cuts:
    """The cuts of a model whose forward pass is g. ratios: of the devices' shares.

    least: bytes of a weight from which on its rows are cut although its product has to be joined.
    """
    axes, n = Axes(g), len(ratios)
    weights: dict[str, Cut] = {}
    whole: dict[str, str] = {}
    for w in _weights(g):
        for a in range(len(w.shape)):
            c = axes.of(w, a)
            if not c.whole and c.n_rows and c.pieces >= n:
                weights[w.name] = Cut(a, bounds_of(w.shape[a], c.pieces, ratios))
    for node in g.nodes:
        matrix = node.srcs[0] if node.op == "mul_mat" else None
        if matrix is None or matrix.role is not Role.WEIGHT or matrix.name in weights:
            continue
        rows, n_rows = axes.of(matrix, -2), matrix.shape[-2]
        if len(matrix.shape) == 2 and matrix.nbytes >= least and n_rows >= n:
            weights[matrix.name] = Cut(0, bounds_of(n_rows, n_rows, ratios), joined=True)
        else:
            whole[matrix.name] = "all are needed" if rows.whole else f"{rows.pieces} pieces"
    return Cuts(n, weights, whole)


def sizes(cut: Cut) -> list[int]:
    """Elements of every part."""
    return [b - a for a, b in pairwise(cut.bounds)]


def _weights(g: Graph) -> list[Tensor]:
    found = (s.owner for n in g.nodes for s in n.live_srcs() if s.owner.role is Role.WEIGHT)
    return list(dict.fromkeys(found))
