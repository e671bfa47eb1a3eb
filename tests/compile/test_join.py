"""Products of one value as one op: what joins, what must not, and that values stay."""

from __future__ import annotations

from typing import Any

import numpy as np
from test_fuse import always, everything, feed, ops

from gguflow.engine.backends.numpy import evaluate
from gguflow.engine.compile import fuse_graph
from gguflow.engine.compile.join import join_products
from gguflow.engine.graph import F16, F32, Graph, Role, Tensor


def products(
    n: int = 3, rows: int = 1, norm: bool = True, other_reader: bool = False, widths: Any = (8,) * 6
) -> Graph:
    """n products of one value, each seen through a view, and one that reads a part of the first."""
    g = Graph()
    x = g.input("x", F32, (rows, 16))
    h = g.mul(g.rms_norm(x, eps=1e-5), g.weight("norm", F32, (16,)), name="h") if norm else x
    made = [g.mul_mat(g.weight(f"w{i}", F32, (widths[i], 16)), h, name=f"y{i}") for i in range(n)]
    for i, y in enumerate(made):
        heads = g.reshape(y, (rows, 2, y.shape[1] // 2))
        g.output(g.relu(heads, name=f"out{i}"))
    g.output(g.relu(g.slice(made[0], 1, 2, 6), name="part"))
    if other_reader:
        g.output(g.relu(h, name="other"))
    return g


def joined(g: Graph, supports: Any = everything) -> Graph:
    return join_products(fuse_graph(g, always), supports)


def assert_same(found: Graph, plain: Graph) -> None:
    names = [t.name for t in plain.outputs]
    got, want = (evaluate(g, feed(g), names) for g in (found, plain))
    for name in names:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_products_of_one_value_are_one_with_their_norm() -> None:
    g = joined(products())
    assert ops(g) == ["mul_mat_joined", "relu", "relu", "relu", "relu"]
    (made, *readers) = g.nodes
    assert [s.name for s in made.live_srcs()] == ["x", "norm", "w0", "w1", "w2"]
    assert made.shape == (1, 24) and made.params["eps"] == np.float32(1e-5)
    assert [_offset(r) for r in readers] == [0, 32, 64, 8]
    assert all(r.live_srcs()[0].owner is made for r in readers)
    assert_same(joined(products()), products())


def _offset(node: Tensor) -> int:
    (s,) = node.live_srcs()
    assert s.role is Role.VIEW
    return s.view_offset


def test_a_norm_that_others_read_stays() -> None:
    g = joined(products(other_reader=True))
    assert ops(g)[:2] == ["rms_norm_mul", "mul_mat_joined"]
    assert g.nodes[1].srcs[1] is None
    assert_same(joined(products(other_reader=True)), products(other_reader=True))


def test_more_than_four_are_two() -> None:
    for n, kinds in ((5, ["mul_mat_joined", "mul_mat"]), (6, ["mul_mat_joined"] * 2)):
        g = joined(products(n, norm=False))
        assert [op for op in ops(g) if op != "relu"] == kinds
        assert_same(joined(products(n, norm=False)), products(n, norm=False))


def test_what_does_not_join() -> None:
    assert "mul_mat_joined" not in ops(joined(products(rows=2)))
    assert "mul_mat_joined" not in ops(joined(products(1)))
    assert "mul_mat_joined" not in ops(joined(products(), always))
    assert ops(joined(products(2, norm=False, widths=(8, 6)))).count("mul_mat") == 2


def test_weights_of_another_type_and_values_that_the_host_reads_stay_apart() -> None:
    g = Graph()
    x = g.input("x", F32, (1, 16))
    types = (F32, F32, F16, F32)
    made = [g.mul_mat(g.weight(f"w{i}", t, (8, 16)), x, name=f"y{i}") for i, t in enumerate(types)]
    g.output(made[3])
    for y in made[:3]:
        g.output(g.relu(y))
    found = joined(g)
    assert [n.name for n in found.nodes if n.op == "mul_mat"] == ["y2", "y3"]
    assert ops(found).count("mul_mat_joined") == 1
