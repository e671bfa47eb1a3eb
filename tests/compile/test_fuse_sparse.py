"""The parts of a sparse layer become one op, and only when they are about the same neurons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gguflow.engine.ops  # noqa: F401
from gguflow.engine.backends.numpy import evaluate
from gguflow.engine.compile import fuse_graph
from gguflow.engine.graph import F32, I32, LEAST_POSITIVE, Graph, Tensor, least_above

N_FF, N_ROWS, K = 12, 7, 8


def layer(
    kind: str,
    bamboo: bool = False,
    exact_at: float = LEAST_POSITIVE,
    cut: float = 0.0,
    **other: Any,
) -> Graph:
    """One layer: `all`, `bucket`, `cold`, or `exact` with any of these."""
    g = Graph()
    rows = N_ROWS if "bucket" in kind else N_FF
    x, p = g.input("x", F32, (3, K)), g.input("p", F32, (3, N_FF))
    w = {n: g.weight(n, F32, (rows, K)) for n in ("gate", "up", "down")}
    here = (
        g.weight("bucket", I32, (N_ROWS,)) if "bucket" in kind else None,
        g.weight("there", I32, (N_FF,)) if "cold" in kind else None,
    )
    exact = "exact" in kind
    run: dict[str, Any] = {"threshold": exact_at if exact else 0.25}
    if exact and here == (None, None):
        gate = g.mul_mat(w["gate"], x, name="g")
    elif exact:
        gate = g.mul_mat_sparse(w["gate"], x, None, *here, n_ff=N_FF, name="g")
    else:
        gate = g.mul_mat_sparse(w["gate"], x, p, *here, **run, name="g")
    idx = gate if exact else p
    up = g.mul_mat_sparse(w["up"], x, idx, *here, **run, name="u")

    def relu(x: Tensor) -> Tensor:
        return g.fatrelu(x, cut=cut) if cut else g.relu(x)

    h = g.mul(relu(gate), relu(up) if bamboo else up, name="h")
    g.output(g.axpy_sparse(w["down"], h, idx, *here, **{**run, **other}, name="out"))
    return g


def feed(g: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    values: dict[str, np.ndarray] = {
        n: rng.standard_normal(t.shape).astype(np.float32) for n, t in g.leaves.items()
    }
    values["bucket"] = np.array([0, 2, 3, 5, 8, 9, 11], np.int32)
    values["there"] = np.isin(np.arange(N_FF), [1, 3, 8]).astype(np.int32)
    return {n: values[n] for n in g.leaves}


KINDS = ["all", "bucket", "cold", "bucket cold"]


@pytest.mark.parametrize("bamboo", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, *(f"exact {k}" for k in KINDS)])
def test_one_op_with_the_same_result(kind: str, bamboo: bool) -> None:
    plain, fused = layer(kind, bamboo), fuse_graph(layer(kind, bamboo), lambda n: True)
    assert [n.op for n in fused.nodes] == ["sparse_ffn"]
    assert fused.nodes[0].params["relu_up"] == bamboo
    want, got = (evaluate(g, feed(plain))["out"] for g in (plain, fused))
    assert np.abs(want).max() > 0.1
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bamboo", [False, True])
@pytest.mark.parametrize("kind", ["all", "bucket", "exact all", "exact cold"])
def test_a_cut_goes_with_the_layer(kind: str, bamboo: bool) -> None:
    how: dict[str, Any] = {"cut": 0.25, "exact_at": least_above(0.25)}
    plain, fused = (
        layer(kind, bamboo, **how),
        fuse_graph(layer(kind, bamboo, **how), lambda n: True),
    )
    assert [n.op for n in fused.nodes] == ["sparse_ffn"] and fused.nodes[0].params["cut"] == 0.25
    want, got = (evaluate(g, feed(plain))["out"] for g in (plain, fused))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    if "exact" in kind:  # what is above 0 and not above the cut is no reason to read a row
        kept = fuse_graph(layer(kind, bamboo, cut=0.25), lambda n: True)
        assert "sparse_ffn" not in [n.op for n in kept.nodes]


def alone(kind: str, cut: float = 0.0, bias: bool = True, threshold: float = 0.25) -> Graph:
    """A layer without a gate; `exact` halves find out by up itself."""
    g = Graph()
    rows = N_ROWS if "bucket" in kind else N_FF
    x, p = g.input("x", F32, (3, K)), g.input("p", F32, (3, N_FF))
    up, down = (g.weight(n, F32, (rows, K)) for n in ("up", "down"))
    here = (
        g.weight("bucket", I32, (N_ROWS,)) if "bucket" in kind else None,
        g.weight("there", I32, (N_FF,)) if "cold" in kind else None,
    )
    exact = "exact" in kind
    u = g.mul_mat_sparse(up, x, None if exact else p, *here, threshold=0.25, n_ff=N_FF, name="u")
    if bias:
        u = g.add(u, g.weight("bias", F32, (N_FF,)), name="ub")
    h = g.fatrelu(u, cut=cut, name="h") if cut else g.relu(u, name="h")
    run = (h, *here, LEAST_POSITIVE) if exact else (p, *here, threshold)
    g.output(g.axpy_sparse(down, h, *run[:3], threshold=run[3], name="out"))
    return g


@pytest.mark.parametrize("cut", [0.0, 0.25])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, *(f"exact {k}" for k in KINDS)])
def test_a_layer_without_a_gate(kind: str, bias: bool, cut: float) -> None:
    plain, fused = alone(kind, cut, bias), fuse_graph(alone(kind, cut, bias), lambda n: True)
    assert [n.op for n in fused.nodes] == ["sparse_ffn"] and fused.nodes[0].srcs[0] is None
    want, got = (evaluate(g, feed(plain))["out"] for g in (plain, fused))
    assert np.abs(want).max() > 0.1
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_without_a_gate_the_thresholds_must_agree_too() -> None:
    g = fuse_graph(alone("all", threshold=0.5), lambda n: True)
    assert "sparse_ffn" not in [n.op for n in g.nodes]


@pytest.mark.parametrize("kind", ["all", "exact all"])
def test_another_threshold_is_another_layer(kind: str) -> None:
    g = fuse_graph(layer(kind, threshold=0.5), lambda n: True)
    assert "sparse_ffn" not in [n.op for n in g.nodes]


def test_a_part_that_the_host_reads_is_kept() -> None:
    g = layer("all")
    g.output(g.nodes[0])
    assert "sparse_ffn" not in [n.op for n in fuse_graph(g, lambda n: True).nodes]


def test_other_neurons_or_inputs_are_left_alone() -> None:
    g = Graph()
    x, y = g.input("x", F32, (3, K)), g.input("y", F32, (3, K))
    p, q = g.input("p", F32, (3, N_FF)), g.input("q", F32, (3, N_FF))
    w = g.weight("w", F32, (N_FF, K))
    for x_up, idx_up, idx_down in ((y, p, p), (x, q, p), (x, p, q), (x, p, None), (x, None, p)):
        gate, up = g.mul_mat_sparse(w, x, p), g.mul_mat_sparse(w, x_up, idx_up)
        g.output(g.axpy_sparse(w, g.reglu(gate, up), idx_down))
    assert "sparse_ffn" not in [n.op for n in fuse_graph(g, lambda n: True).nodes]


def whole(kind: str, residual_first: bool = False) -> Graph:
    """A layer with its norm, residual and predictor."""
    g = Graph()
    x = g.input("x", F32, (3, K))
    h = g.rms_norm_mul(x, g.weight("norm", F32, (K,)), eps=1e-5, name="norm_x")
    w = {n: g.weight(n, F32, (N_FF, K)) for n in ("gate", "up", "down")}
    idx = None
    if kind == "predict":
        hidden = g.relu(g.mul_mat(g.weight("fc1", F32, (5, K)), x), name="hidden")
        idx = g.mul_mat(g.weight("fc2", F32, (N_FF, 5)), hidden, name="predict")
    out = g.sparse_ffn(w["gate"], w["up"], w["down"], h, idx, threshold=0.1, name="sparse")
    if kind == "read twice":
        g.output(g.neg(h, name="also"))
    g.output(g.add(x, out, name="y") if residual_first else g.add(out, x, name="y"))
    return g


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("kind", ["predict", "exact"])
def test_norm_and_residual_join_the_layer(kind: str, first: bool) -> None:
    plain, fused = whole(kind, first), fuse_graph(whole(kind, first), lambda n: True)
    before = ["mul_mat_relu", "mul_mat"] if kind == "predict" else []
    assert [n.op for n in fused.nodes] == [*before, "norm_sparse_ffn"]
    want, got = (evaluate(g, feed(g))["y"] for g in (plain, fused))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_norm_that_others_read_stays() -> None:
    assert "norm_sparse_ffn" not in [
        n.op for n in fuse_graph(whole("read twice"), lambda n: True).nodes
    ]


@pytest.mark.parametrize("threshold", [0.0, float(np.finfo(np.float32).tiny), 1e-3])
def test_only_the_least_positive_threshold_makes_a_layer_exact(threshold: float) -> None:
    """Any other leaves out neurons that fire, or computes those that do not."""
    assert [n.op for n in fuse_graph(layer("exact"), lambda n: True).nodes] == ["sparse_ffn"]
    kept = [n.op for n in fuse_graph(layer("exact", exact_at=threshold), lambda n: True).nodes]
    assert "sparse_ffn" not in kept


def test_the_least_positive_threshold_leaves_out_what_relu_makes_zero() -> None:
    least = np.float32(LEAST_POSITIVE)
    assert 0 < least == np.nextafter(np.float32(0), np.float32(1))
    x = np.float32([-1, -least, -0.0, 0.0, least, np.finfo(np.float32).tiny, 1, np.inf, np.nan])
    assert np.array_equal(x < least, np.maximum(x, 0) == 0)
