"""Values replaced in a recorded graph, and products in parts that make the whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import gguflow.engine.ops  # noqa: F401
from gguflow.engine.backends.numpy import evaluate
from gguflow.engine.compile import (
    recorded_before,
    replace_values,
    split_columns,
    split_rows,
    split_sum,
)
from gguflow.engine.graph import F32, DType, Graph, Role, Tensor, dtype_by_name
from gguflow.engine.load import WeightSource, columns_of, rows_of
from gguflow.engine.quants import encode

N_IN, N_OUT, N_TOKENS = 96, 80, 3
RNG = np.random.default_rng(5)
X = RNG.standard_normal((N_TOKENS, N_IN)).astype(np.float32)
W = RNG.standard_normal((N_OUT, N_IN)).astype(np.float32)


def weight(name: str, values: np.ndarray, dtype: DType = F32) -> WeightSource:
    raw = encode(dtype, values).view(np.uint8).reshape(-1)
    return WeightSource(name, dtype, values.shape, lambda: raw, lambda: None)


def declare(g: Graph, sources: Sequence[WeightSource]) -> list[Tensor]:
    return [g.weight(s.name, s.dtype, s.shape) for s in sources]


def graph(dtype: DType = F32) -> tuple[Graph, WeightSource, Tensor]:
    """relu(w x + 1), with names as in a layer."""
    g, whole = Graph(), weight("w", W, dtype)
    x = g.input("x", F32, X.shape)
    with g.scope("blk.0"):
        product = g.mul_mat(*declare(g, [whole]), x, name="q")
        g.output(g.relu(g.add(product, g.input("one", F32, (1,)), name="plus"), name="act"))
    return g, whole, product


def values(g: Graph, sources: Sequence[WeightSource]) -> np.ndarray:
    feeds = {s.name: s.read() for s in sources} | {"x": X, "one": np.ones(1, np.float32)}
    return evaluate(g, {n: v for n, v in feeds.items() if n in g.leaves})[g.outputs[0].name]


@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
@pytest.mark.parametrize("cuts", [[80], [1, 79], [16, 32, 32]])
def test_rows_stand_side_by_side(cuts: list[int], dtype: str) -> None:
    g, whole, product = graph(dtype_by_name(dtype))
    expected = values(g, [whole])
    at = np.cumsum([0, *cuts])
    parts = [rows_of(whole, f"w.{k}", np.arange(a, b)) for k, (a, b) in
             enumerate(zip(at, at[1:], strict=False))]  # fmt: skip
    split_rows(g, product, declare(g, parts))
    g.drop_unused_weights()
    assert [n for n, t in g.leaves.items() if t.role is Role.WEIGHT] == [p.name for p in parts]
    assert np.array_equal(values(g, parts), expected)


@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
@pytest.mark.parametrize("cuts", [[96], [32, 64], [32, 32, 32]])
def test_columns_are_added(cuts: list[int], dtype: str) -> None:
    g, whole, product = graph(dtype_by_name(dtype))
    expected = values(g, [whole])
    at = np.cumsum([0, *cuts])
    parts = [columns_of(whole, f"w.{k}", int(a), int(b)) for k, (a, b) in
             enumerate(zip(at, at[1:], strict=False))]  # fmt: skip
    split_columns(g, product, declare(g, parts))
    g.drop_unused_weights()
    found = values(g, parts)
    assert ((found - expected) ** 2).sum() / (expected**2).sum() < 1e-12
    sums = [n for n in g.nodes if n.op == "add" and ".sum" in n.name]
    assert len(sums) == len(cuts) - 1  # what a device for each part would reduce


def test_neurons_anywhere_make_the_layer() -> None:
    """Rows of gate and rows of the transposed down matrix: a permutation cut in two."""
    g = Graph()
    down = RNG.standard_normal((N_OUT, 64)).astype(np.float32)
    sources = [weight("gate", W), weight("down_t", down)]
    x = g.input("x", F32, X.shape)
    gate, down_t = declare(g, sources)
    hidden = g.relu(g.mul_mat(gate, x, name="gate_"), name="act")
    out = g.axpy_sparse(down_t, hidden, name="down")
    g.output(out)
    expected = np.maximum(X @ W.T, 0) @ down
    order, halves, parts = RNG.permutation(N_OUT), [], []
    for name, ids in (("hot", order[:30]), ("cold", order[30:])):
        mine = [rows_of(s, f"{s.name}.{name}", ids) for s in sources]
        halves += mine

        def part(leaves: list[Tensor] = declare(g, mine), name: str = name) -> Tensor:  # noqa: B008
            return g.axpy_sparse(leaves[1], g.relu(g.mul_mat(leaves[0], x)), name=name)

        parts.append(part)
    split_sum(g, out, parts, "merge")
    assert [n.name for n in g.nodes if n.op in ("axpy_sparse", "add")] == ["hot", "cold", "merge"]
    assert "down" not in {n.name for n in g.nodes} and "act" not in {n.name for n in g.nodes}
    g.drop_unused_weights()
    found = values(g, halves)
    assert ((found - expected) ** 2).sum() / (expected**2).sum() < 1e-12


def test_parts_that_are_not_the_whole_are_refused() -> None:
    g, whole, product = graph()
    with pytest.raises(ValueError, match=r"blk\.0\.q: \[\[40, 96\]\] are not the parts of \[80, 9"):
        split_rows(g, product, declare(g, [rows_of(whole, "w.0", np.arange(40))]))
    with pytest.raises(ValueError, match="not the parts of"):
        split_columns(g, product, declare(g, [columns_of(whole, "w.1", 0, 32)]))
    quantized = weight("w", W, dtype_by_name("q8_0"))
    with pytest.raises(ValueError, match="tensor w: columns 0 to 40 cut a block of 32 q8_0 values"):
        columns_of(quantized, "w.0", 0, 40)


def test_what_is_replaced_is_gone_and_what_is_shared_stays() -> None:
    g = Graph()
    x = g.input("x", F32, (2, 8))
    shared = g.relu(x, name="shared")
    alone = g.silu(shared, name="alone")
    old = g.add(alone, shared, name="old")
    view = g.reshape(old, (4, 4))
    after = g.relu(view, name="after")
    g.output(after)
    g.output(view)
    g.output(shared)
    with recorded_before(g, old):
        new = g.mul(shared, shared, name="new")
    replace_values(g, {old: new})
    assert [n.name for n in g.nodes] == ["shared", "new", "after"]
    assert view.owner is new and g.outputs == [after, view, shared]
    some = X[:2, :8].copy()
    expected = (np.maximum(some, 0) ** 2).reshape(4, 4)
    assert np.array_equal(evaluate(g, {"x": some})["after"], expected)


def test_a_value_of_another_shape_is_no_replacement() -> None:
    g = Graph()
    a = g.relu(g.input("x", F32, (2, 8)), name="a")
    b = g.relu(g.input("y", F32, (2, 4)), name="b")
    with pytest.raises(ValueError, match=r"b f32\[2, 4\] in place of a f32\[2, 8\]"):
        replace_values(g, {a: b})
