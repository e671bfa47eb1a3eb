"""A product in parts: each device has some rows of the weights, and the parts make the whole.

Rows of a weight are columns of its result: parts by rows stand side by side. Columns of a weight
meet parts of its input: parts by columns are added. A feed-forward layer is both at once: a neuron
is a row of gate and up and a column of down (a row of down transposed), so that whole neurons can
lie on any device and the parts of the layer are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from gguflow.engine.graph import Graph, Tensor

from .rewrite import recorded_before, replace_values

Part = Callable[[], Tensor]  # records a part of the value


def split_sum(g: Graph, whole: Tensor, parts: Sequence[Part], name: str) -> Tensor:
    """Replace a value by the sum of its parts, added in their order; the sum is called `name`."""
    made = sum_before(g, whole, parts, name)
    replace_values(g, {whole: made})
    return made


def sum_before(g: Graph, whole: Tensor, parts: Sequence[Part], name: str) -> Tensor:
    """Record the sum right before the value, for who replaces many values at once."""
    return _join(g, whole, parts, lambda a, b: g.add(a, b, name=name))


def split_rows(g: Graph, product: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Replace mul_mat(w, x) by products with parts of its rows: [n_k, n_in] each, in their order.

    The parts are called `<product>.0` and so on. Raises ValueError when they are not all rows.
    """
    _, x = product.live_srcs()
    _check(product, weights, 0)
    parts = [_product(g, w, x, f"{product.name}.{k}") for k, w in enumerate(weights)]
    name = f"{product.name}.rows"
    made = _join(g, product, parts, lambda a, b: g.concat(a, b, axis=-1, name=name))
    replace_values(g, {product: made})
    return made


def split_columns(g: Graph, product: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Replace mul_mat(w, x) by the sum of products with parts of its columns: [n_out, n_k] each.

    Part k reads the columns of x that are its own. Raises ValueError when they are not all columns.
    """
    _, x = product.live_srcs()
    _check(product, weights, 1)
    parts, start = [], 0
    for k, w in enumerate(weights):
        parts.append(_columns(g, w, x, start, f"{product.name}.{k}"))
        start += w.shape[1]
    return split_sum(g, product, parts, f"{product.name}.sum")


def _join(
    g: Graph, whole: Tensor, parts: Sequence[Part], join: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    with recorded_before(g, whole):
        return reduce(join, [part() for part in parts])


def _product(g: Graph, w: Tensor, x: Tensor, name: str) -> Part:
    return lambda: g.mul_mat(w, x, name=name)


def _columns(g: Graph, w: Tensor, x: Tensor, start: int, name: str) -> Part:
    def part() -> Tensor:
        mine = g.slice(x, -1, start, start + w.shape[1], name=f"{name}.x")
        return g.mul_mat(w, mine, name=name)

    return part


def _check(product: Tensor, weights: Sequence[Tensor], axis: int) -> None:
    whole = product.live_srcs()[0]
    expected, found = list(whole.shape), [list(w.shape) for w in weights]
    total = sum(shape[axis] for shape in found)
    if total != expected[axis] or any(s[1 - axis] != expected[1 - axis] for s in found):
        raise ValueError(f"{product.name}: {found} are not the parts of {expected}")
