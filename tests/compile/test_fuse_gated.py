"""Fusion of gated products beside SiLU's: what fires, what must not, and the values."""

from __future__ import annotations

from typing import Any

import pytest
from test_fuse import always, assert_same_values, everything, ops

from gguflow.engine.compile import fuse_graph
from gguflow.engine.graph import F16, F32, Graph


def geglu(up: Any = F32) -> Graph:
    g = Graph()
    x = g.input("x", F32, (3, 8))
    gate = g.mul_mat(g.weight("gate", F32, (16, 8)), x, name="gate_mm")
    value = g.mul_mat(g.weight("up", up, (16, 8)), x, name="up_mm")
    g.output(g.mul(g.gelu(gate), value, name="out"))
    return g


def experts(act: str, bias: bool, same_ids: bool = True) -> Graph:
    g = Graph()
    x, logits = g.input("x", F32, (3, 8)), g.input("logits", F32, (3, 4))
    ids = g.route(logits, n_used=2, score="softmax", name="ids")
    other = ids if same_ids else g.route(logits, n_used=2, score="sigmoid", name="other")
    biases = [g.weight(f"{w}.bias", F32, (4, 16)) if bias else None for w in ("gate", "up")]
    gate = g.mul_mat_id(g.weight("gate", F32, (4, 16, 8)), x, ids, biases[0], name="gate_mm")
    up = g.mul_mat_id(g.weight("up", F32, (4, 16, 8)), x, other, biases[1], name="up_mm")
    if act == "swiglu_clamped":
        made = g.swiglu_clamped(gate, up, alpha=1.5, limit=1.0, name="out")
    else:
        made = g.mul(g.op({"swiglu": "silu", "geglu": "gelu"}[act], gate), up, name="out")
    g.output(made)
    return g


def test_gelu_gate_and_up_are_one() -> None:
    fused = fuse_graph(geglu(), everything)
    assert ops(fused) == ["mul_mat_geglu"]
    assert_same_values(fused, geglu())
    assert ops(fuse_graph(geglu(F16), everything)) == ["mul_mat", "mul_mat", "geglu"]
    assert ops(fuse_graph(geglu(), always)) == ["mul_mat", "mul_mat", "geglu"]


def test_a_norm_before_them_joins() -> None:
    def normed() -> Graph:
        g = Graph()
        x = g.input("x", F32, (3, 8))
        h = g.mul(g.rms_norm(x, eps=1e-5), g.weight("norm", F32, (8,)), name="norm")
        gate, up = (g.mul_mat(g.weight(n, F32, (16, 8)), h, name=f"{n}_mm") for n in ("gate", "up"))
        g.output(g.mul(g.gelu(gate), up, name="out"))
        return g

    fused = fuse_graph(normed(), everything)
    assert ops(fused) == ["norm_mul_mat_geglu"]
    assert_same_values(fused, normed())


@pytest.mark.parametrize("act", ["gelu", "gelu_erf"])
@pytest.mark.parametrize("added", ["", "bias", "residual"])
def test_gelu_joins_the_product_before_it(act: str, added: str) -> None:
    def layer() -> Graph:
        g = Graph()
        x = g.input("x", F32, (3, 8))
        y = g.mul_mat(g.weight("up", F32, (16, 8)), x, name="up_mm")
        if added:
            r = g.weight("b", F32, (16,)) if added == "bias" else g.input("r", F32, (3, 16))
            y = g.add(y, r, name="added")
        g.output(g.op(act, y, name="out"))
        return g

    fused = fuse_graph(layer(), everything)
    assert ops(fused) == (["mul_mat_add", act] if added == "residual" else ["mul_mat_gelu"])
    assert_same_values(fused, layer())
    assert "mul_mat_gelu" not in ops(fuse_graph(layer(), always))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("act", ["swiglu", "geglu", "swiglu_clamped"])
def test_experts_gate_and_up_are_one(act: str, bias: bool) -> None:
    fused = fuse_graph(experts(act, bias), everything)
    assert ops(fused) == ["route", "mul_mat_id_glu"]
    assert_same_values(fused, experts(act, bias))


def test_of_other_experts_they_are_not() -> None:
    fused = fuse_graph(experts("swiglu", False, same_ids=False), everything)
    assert "mul_mat_id_glu" not in ops(fused)
