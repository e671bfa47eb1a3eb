"""Fusion of norms with what comes behind them: what fires, what must not, and the values."""

from __future__ import annotations

import pytest
from test_fuse import always, assert_same_values, everything, ops

from gguflow.engine.compile import fuse_graph
from gguflow.engine.graph import F32, Graph, Tensor


def normed(g: Graph, x: Tensor, name: str) -> Tensor:
    return g.mul(g.rms_norm(x, eps=1e-5), g.weight(f"{name}.w", F32, x.shape[-1:]), name=name)


def behind_a_block(turned: bool = False) -> Graph:
    """A residual and the norm of what a block made of it, as Gemma 2 has it."""
    g = Graph()
    r, x = g.input("r", F32, (3, 8)), g.input("x", F32, (3, 16))
    norm = normed(g, g.mul_mat(g.weight("w", F32, (8, 16)), x, name="out"), "norm")
    g.output(g.add(*((r, norm) if turned else (norm, r)), name="residual"))
    return g


@pytest.mark.parametrize("turned", [False, True])
def test_a_norm_takes_its_residual_along(turned: bool) -> None:
    fused = fuse_graph(behind_a_block(turned), everything)
    assert ops(fused) == ["mul_mat", "rms_norm_add"]
    assert_same_values(fused, behind_a_block(turned))
    assert ops(fuse_graph(behind_a_block(turned), always)) == ["mul_mat", "rms_norm_mul", "add"]


def test_the_norm_of_several_rows_is_not_added_to_one() -> None:
    g = Graph()
    g.output(g.add(normed(g, g.input("x", F32, (3, 8)), "norm"), g.input("r", F32, (8,))))
    assert ops(fuse_graph(g, everything)) == ["rms_norm_mul", "add"]


def test_of_two_norms_one_takes_the_other_along() -> None:
    def graph() -> Graph:
        g = Graph()
        a, b = (normed(g, g.input(x, F32, (3, 8)), f"norm_{x}") for x in "ab")
        g.output(g.add(a, b, name="both"))
        return g

    fused = fuse_graph(graph(), everything)
    assert ops(fused) == ["rms_norm_mul", "rms_norm_add"]
    assert_same_values(fused, graph())


def test_a_norm_that_is_added_to_itself_is_kept() -> None:
    g = Graph()
    norm = normed(g, g.input("x", F32, (3, 8)), "norm")
    g.output(g.add(norm, norm))
    assert ops(fuse_graph(g, everything)) == ["rms_norm_mul", "add"]
