"""Layers whose attention and feed-forward part stand side by side: both products that end them as
one, and what reads their norm side by side."""

from __future__ import annotations

import numpy as np
import pytest
from test_fuse import always, assert_same_values, everything, feed, ops

from gguflow.engine.backends.numpy import evaluate
from gguflow.engine.compile import fuse_graph
from gguflow.engine.compile.join import bring_together
from gguflow.engine.graph import F32, I32, Graph

# -- what a layer ends with ------------------------------------------------------------------------


def layer(biases: str = "", read_twice: bool = False, residual: bool = True) -> Graph:
    """x + w0 y0 + w1 y1, with biases of the products that `biases` names. residual: whether x is
    there at all."""
    g = Graph()
    out = g.input("x", F32, (3, 8)) if residual else None
    for i, k in enumerate((4, 16)):
        y = g.mul_mat(g.weight(f"w{i}", F32, (8, k)), g.input(f"y{i}", F32, (3, k)), name=f"p{i}")
        if str(i) in biases:
            y = g.add(y, g.weight(f"b{i}", F32, (8,)), name=f"q{i}")
        out = y if out is None else g.add(y, out, name=f"sum{i}")
        if i == 0 and read_twice:
            g.output(g.relu(out, name="other"))
    assert out is not None
    g.output(out)
    return g


@pytest.mark.parametrize("biases", ["", "0", "1", "01"])
def test_both_products_are_one(biases: str) -> None:
    fused = fuse_graph(layer(biases), everything)
    assert ops(fused) == ["mul_mat_two_add"]
    assert [None if s is None else s.name for s in fused.nodes[0].srcs] == [
        "w0", "y0", "w1", "y1", "x", *(f"b{i}" if i in biases else None for i in "01" if biases)
    ]  # fmt: skip
    assert_same_values(fused, layer(biases))


def test_what_does_not_become_one() -> None:
    assert ops(fuse_graph(layer(), always)) == ["mul_mat_add", "mul_mat_add"]
    read = fuse_graph(layer(read_twice=True), everything)
    assert ops(read) == ["mul_mat_add", "relu", "mul_mat_add"]
    # Only a bias is added to both.
    biased = fuse_graph(layer("0", residual=False), everything)
    assert ops(biased) == ["mul_mat_add", "mul_mat_add"]
    assert_same_values(biased, layer("0", residual=False))


# -- what a layer begins with ----------------------------------------------------------------------


def begins(m: int = 1, norm: bool = True, bias: bool = False, of_it: bool = True) -> Graph:
    """A norm, queries that are read at once, and GELU of a product of the norm. bias: added there,
    made by another node; of_it: whether that product reads the norm."""
    g = Graph()
    x, w = g.input("x", F32, (m, 4)), g.weight("norm", F32, (4,))
    h = g.layer_norm(x, w, eps=1e-5, name="h") if norm else g.rms_norm_mul(x, w, eps=1e-5, name="h")
    qkv = (g.weight(f"w{i}", F32, (n, 4)) for i, n in (("q", 8), ("k", 4), ("v", 4)))
    states = (g.state(f"{i}_state", F32, (9, 4)) for i in "kv")
    where = (g.input(i, I32, (m,)) for i in ("pos", "rows"))
    params = {"eps": 1e-5, "n_dims": 4, "head_dim": 4, "mode": "norm"}
    q = g.op("norm_qkv_rope", h, None, *qkv, *where, *states, name="q", **params)
    g.output(g.relu(q, name="read"))
    b = (g.relu(g.weight("b", F32, (6,)), name="b_made"),) if bias else ()
    up = g.weight("up", F32, (6, 4))
    g.output(g.mul_mat_gelu(up, h if of_it else x, *b, name="act"))
    return g


def test_what_reads_a_norm_is_brought_together() -> None:
    found = bring_together(begins())
    assert [n.name for n in found.nodes] == ["h", "act", "q", "read"]
    fed = {n: v if n not in ("pos", "rows") else v.astype(np.int32) for n, v in feed(found).items()}
    got, want = (evaluate(g, {n: v.copy() for n, v in fed.items()}) for g in (found, begins()))
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize("changed", [{"m": 2}, {"norm": False}, {"bias": True}, {"of_it": False}])
def test_what_stays_where_it_was(changed: dict[str, int]) -> None:
    names = [n.name for n in begins(**changed).nodes]
    assert [n.name for n in bring_together(begins(**changed)).nodes] == names
