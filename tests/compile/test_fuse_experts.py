"""Fusion of the second half of a layer of experts: what fires, what must not, and the values."""

from __future__ import annotations

import pytest
from test_fuse import always, assert_same_values, everything, ops

from gguflow.engine.compile import fuse_graph
from gguflow.engine.graph import F32, Graph


def layer(bias: bool, add: str, *, read: bool = False) -> Graph:
    """add: which side of the sum the experts' is, or none. read: the products are an output too."""
    g = Graph()
    x, logits = g.input("x", F32, (3, 2, 8)), g.input("logits", F32, (3, 4))
    r, shares = g.input("r", F32, (3, 16)), g.input("shares", F32, (3, 2))
    ids = g.route(logits, n_used=2, score="softmax", name="ids")
    b = g.weight("down.bias", F32, (4, 16)) if bias else None
    down = g.mul_mat_id(g.weight("down", F32, (4, 16, 8)), x, ids, b, name="down_mm")
    out = g.moe_sum(down, shares, name="sum")
    if add:
        out = g.add(*((out, r) if add == "left" else (r, out)), name="out")
    g.output(out)
    if read:
        g.output(down)
    return g


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("add", ["", "left", "right"])
def test_down_sum_and_residual_are_one(bias: bool, add: str) -> None:
    fused = fuse_graph(layer(bias, add), everything)
    assert ops(fused) == ["route", "mul_mat_id_sum"]
    assert_same_values(fused, layer(bias, add))
    plain = ["route", "mul_mat_id", "moe_sum", *(["add"] if add else [])]
    assert ops(fuse_graph(layer(bias, add), always)) == plain


def test_products_that_are_read_elsewhere_stay() -> None:
    fused = fuse_graph(layer(False, "left", read=True), everything)
    assert ops(fused) == ["route", "mul_mat_id", "moe_sum", "add"]


def test_one_value_is_added_and_the_next_by_itself() -> None:
    g = layer(False, "left")
    (out,) = g.outputs
    g.outputs = [g.add(out, g.leaves["r"], name="more")]
    assert ops(fuse_graph(g, everything)) == ["route", "mul_mat_id_sum", "add"]
