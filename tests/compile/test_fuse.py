"""Fusion: what fires, what must not, and that the result stays the composition."""

from __future__ import annotations

import numpy as np
import pytest

import gguflow.engine.ops  # noqa: F401
from gguflow.engine.backends.numpy import evaluate
from gguflow.engine.compile import RULES, fuse_graph
from gguflow.engine.graph import F32, I32, Graph, Tensor, exchanged, op_spec
from gguflow.engine.plan_key import PAGE


def everything(_: Tensor) -> bool:
    return True


def always(node: Tensor) -> bool:
    """What every backend has a kernel for."""
    return not op_spec(node.op or "").optional


def ops(g: Graph) -> list[str | None]:
    return [n.op for n in g.nodes]


def feed(g: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {n: rng.standard_normal(t.shape).astype(np.float32) for n, t in g.leaves.items()}


def ffn() -> Graph:
    g = Graph()
    x = g.input("x", F32, (3, 8))
    h = g.mul(g.rms_norm(x, eps=1e-5), g.weight("norm", F32, (8,)), name="norm")
    gate = g.mul_mat(g.weight("gate", F32, (16, 8)), h, name="gate")
    up = g.mul_mat(g.weight("up", F32, (16, 8)), h, name="up")
    act = g.mul(g.silu(gate), up, name="swiglu")
    down = g.mul_mat(g.weight("down", F32, (8, 16)), act, name="down")
    g.output(g.add(down, x, name="residual"))
    return g


def assert_same_values(fused: Graph, plain: Graph) -> None:
    """Every op that is left computes what the op of its name computed."""
    names = [n.name for n in fused.nodes]
    got, want = (evaluate(g, feed(g), names) for g in (fused, plain))
    for name in names:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_ffn_becomes_two_ops_with_the_same_result() -> None:
    plain, fused = ffn(), fuse_graph(ffn(), everything)
    assert ops(fused) == ["norm_mul_mat_swiglu", "mul_mat_add"]
    assert [n.name for n in fused.nodes] == ["swiglu", "residual"]
    assert_same_values(fused, plain)


def test_ffn_becomes_three_ops_where_kernels_are_few() -> None:
    plain, fused = ffn(), fuse_graph(ffn(), always)
    assert ops(fused) == ["rms_norm_mul", "mul_mat_swiglu", "mul_mat_add"]
    assert [n.name for n in fused.nodes] == ["norm", "swiglu", "residual"]
    assert_same_values(fused, plain)


def test_no_rules_leaves_the_graph_alone() -> None:
    assert ops(fuse_graph(ffn(), everything, rules=[])) == ops(ffn())


def test_each_rule_can_be_used_alone() -> None:
    want = evaluate(ffn(), feed(ffn()))["residual"]
    for rule in RULES:
        g = fuse_graph(ffn(), everything, rules=[rule])
        np.testing.assert_allclose(evaluate(g, feed(g))["residual"], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("turned", [False, True])
def test_a_sum_takes_its_residual_along(turned: bool) -> None:
    g = Graph()
    r, parts = g.input("r", F32, (2, 8)), [g.input(f"p{i}", F32, (2, 8)) for i in range(3)]
    total = g.op("all_reduce", *parts)
    g.output(g.add(*((r, total) if turned else (total, r)), name="out"))
    want = evaluate(g, feed(g))
    fused = fuse_graph(g, everything)
    assert ops(fused) == ["all_reduce_add"] and exchanged(fused.nodes[0]) == tuple(parts)
    np.testing.assert_array_equal(evaluate(fused, feed(fused))["out"], want["out"])


def test_a_residual_that_was_a_sum_before_is_taken_along() -> None:
    g = Graph()
    r, a, b, c, d = (g.input(x, F32, (2, 8)) for x in "rabcd")
    attn = g.add(g.op("all_reduce", a, b), r)
    g.output(g.add(g.op("all_reduce", c, d), attn, name="out"))
    want = evaluate(g, feed(g))
    fused = fuse_graph(g, everything)
    assert ops(fused) == ["all_reduce_add", "all_reduce_add"]
    np.testing.assert_array_equal(evaluate(fused, feed(fused))["out"], want["out"])


def test_sums_that_are_added_to_each_other_stay() -> None:
    g = Graph()
    a, b = (g.input(x, F32, (2, 8)) for x in "ab")
    g.output(g.add(g.op("all_reduce", a, b), g.op("all_reduce", b, a)))
    assert ops(fuse_graph(g, everything)) == ["all_reduce", "all_reduce", "add"]


def test_a_value_used_twice_is_kept() -> None:
    g = Graph()
    x = g.input("x", F32, (2, 8))
    gate = g.silu(x, name="gate")
    both = g.mul(gate, x, name="both")
    g.output(g.add(both, gate))
    assert "swiglu" not in ops(fuse_graph(g, everything))


def test_a_value_the_host_reads_is_kept() -> None:
    g = Graph()
    x = g.input("x", F32, (2, 8))
    norm = g.output(g.rms_norm(x, eps=1e-5, name="norm"))
    g.output(g.mul(norm, g.weight("w", F32, (8,))))
    assert ops(fuse_graph(g, everything)) == ["rms_norm", "mul"]


def test_a_value_seen_through_a_view_is_kept() -> None:
    g = Graph()
    x = g.input("x", F32, (2, 8))
    act = g.silu(x, name="act")
    y = g.mul(act, x, name="y")
    g.output(g.add(y, g.cont(g.reshape(act, (2, 8)))))
    assert "swiglu" not in ops(fuse_graph(g, everything))


def test_views_of_a_fused_value_follow_it() -> None:
    g = Graph()
    x = g.input("x", F32, (2, 8))
    y = g.mul(g.silu(x), x, name="y")
    g.output(g.relu(g.reshape(y, (4, 4)), name="out"))
    plain = {"x": np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)}
    want = (plain["x"] / (1 + np.exp(-plain["x"])) * plain["x"]).reshape(4, 4).clip(0)
    fused = fuse_graph(g, everything)
    assert ops(fused) == ["swiglu", "relu"]
    np.testing.assert_allclose(evaluate(fused, plain)["out"], want, rtol=1e-5, atol=1e-6)


def test_nothing_is_fused_without_a_kernel() -> None:
    assert ops(fuse_graph(ffn(), lambda n: "mul_mat_swiglu" not in (n.op or ""))) == [
        "rms_norm_mul", "mul_mat", "mul_mat", "swiglu", "mul_mat_add",
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [(8,), (3, 8)])
def test_bias_and_residual_join_the_product(shape: tuple[int, ...]) -> None:
    g = Graph()
    x = g.input("x", F32, (3, 16))
    product = g.mul_mat(g.weight("w", F32, (8, 16)), x)
    g.output(g.add(product, g.weight("r", F32, shape), name="y"))
    assert ops(fuse_graph(g, everything)) == ["mul_mat_add"]


@pytest.mark.parametrize("turned", [False, True])
def test_a_bias_and_a_residual_join_the_product_together(turned: bool) -> None:
    def layer() -> Graph:
        g = Graph()
        x, r = g.input("x", F32, (3, 16)), g.input("r", F32, (3, 8))
        y = g.mul_mat(g.weight("w", F32, (8, 16)), x, name="y_mm")
        y = g.add(y, g.weight("b", F32, (8,)), name="y")
        g.output(g.add(*((r, y) if turned else (y, r)), name="out"))
        return g

    fused = fuse_graph(layer(), everything)
    assert ops(fused) == ["mul_mat_bias_add"]
    assert_same_values(fused, layer())
    assert ops(fuse_graph(layer(), always)) == ["mul_mat_add", "add"]


def attention(
    last: bool = False,
    other_pos: bool = False,
    biases: bool = False,
    norms: str = "",
    read_twice: bool = False,
    normed: bool = True,
) -> Graph:
    """A block up to its attention: two tokens, two heads of four; `last` looks at the last only.

    norms: of which heads there are. read_twice: the norm of x has another reader too. normed: it is
    an RMS norm.
    """
    g = Graph()
    x, pos = g.input("x", F32, (2, 16)), g.input("pos", I32, (2,))
    where, seq = g.input("rows", I32, (2,)), g.input("seq", I32, (2,))
    states = [g.state(n, F32, (PAGE, 8)) for n in ("keys", "values")]
    norm = g.weight("norm", F32, (16,))
    h = g.mul(g.rms_norm(x, eps=1e-5), norm, name="h") if normed else g.layer_norm(x, norm, eps=0.1)

    def product(n: str, h: Tensor) -> Tensor:
        y = g.mul_mat(g.weight(f"w{n}", F32, (8, 16)), h, name=n)
        return g.add(y, g.weight(f"b{n}", F32, (8,)), name=f"{n}_biased") if biases else y

    def turned(n: str, y: Tensor, pos: Tensor) -> Tensor:
        y = g.reshape(y, (y.shape[0], 2, 4))
        if n in norms:
            y = g.mul(g.rms_norm(y, eps=1e-3), g.weight(f"{n}_norm", F32, (4,)), name=f"{n}_norm")
        return g.rope(y, pos, name=f"{n}_rope", n_dims=4, mode="neox")

    k, v = (product(n, h) for n in "kv")
    if read_twice:
        g.output(g.relu(h, name="other"))
    q_pos = g.input("other", I32, (2,)) if other_pos else pos
    if last:
        h, q_pos, seq = (g.slice(t, 0, 1, 2) for t in (h, pos, seq))
    q = turned("q", product("q", h), q_pos)
    k = turned("k", k, pos)
    rows = [
        g.reshape(g.set_rows(s, y, where), (PAGE, 2, 4))
        for s, y in zip(states, (g.reshape(k, (2, 8)), v), strict=True)
    ]
    table = g.input("table", I32, (1, 1))
    g.output(g.attention(q, *rows, q_pos, seq, table, scale=0.5, name="kqv"))
    return g


def test_everything_before_attention_becomes_one_op() -> None:
    plain, fused = attention(), fuse_graph(attention(), everything)
    assert ops(fused) == ["norm_qkv_rope", "attention"]
    assert [n.name for n in fused.nodes] == ["q_rope", "kqv"]
    assert_same_attention(fused, plain)


@pytest.mark.parametrize("norms", ["", "q", "qk"])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("other", ["none", "reader", "layer_norm"])
def test_biases_and_norms_of_heads_come_along(norms: str, biases: bool, other: str) -> None:
    given = {"norms": norms, "biases": biases}
    given |= {"reader": {"read_twice": True}, "layer_norm": {"normed": False}}.get(other, {})
    plain, fused = attention(**given), fuse_graph(attention(**given), everything)
    before = {"none": [], "reader": ["rms_norm_mul", "relu"], "layer_norm": ["layer_norm"]}[other]
    assert ops(fused) == [*before, "norm_qkv_rope", "attention"]
    (made,) = (n for n in fused.nodes if n.op == "norm_qkv_rope")
    names = [s.name if s else "" for s in made.srcs]
    assert names[1] == ("norm" if other == "none" else "")
    assert names[10:] == [
        *([f"b{n}" if biases else "" for n in "qkv"] if biases or norms else []),
        *(f"{n}_norm" for n in norms),
    ]
    assert_same_attention(fused, plain)


def gated_attention(rows: int = 2) -> Graph:
    """As `attention`, of queries that lie beside a gate, which the result is multiplied by."""
    g = Graph()
    x, pos = g.input("x", F32, (rows, 16)), g.input("pos", I32, (rows,))
    where, seq = g.input("rows", I32, (rows,)), g.input("seq", I32, (rows,))
    states = [g.state(n, F32, (PAGE, 8)) for n in ("keys", "values")]
    k, v = (g.mul_mat(g.weight(f"w{n}", F32, (8, 16)), x, name=n) for n in "kv")
    both = g.reshape(g.mul_mat(g.weight("wq", F32, (16, 16)), x, name="q"), (rows, 2, 8))
    q, gate = (g.cont(g.slice(both, 2, i, i + 4)) for i in (0, 4))

    def turned(n: str, y: Tensor) -> Tensor:
        y = g.reshape(y, (rows, 2, 4))
        y = g.mul(g.rms_norm(y, eps=1e-3), g.weight(f"{n}_norm", F32, (4,)), name=f"{n}_norm")
        return g.rope(y, pos, name=f"{n}_rope", n_dims=2, mode="neox")

    q, k = turned("q", g.reshape(q, (rows, 8))), turned("k", k)
    kv = [
        g.reshape(g.set_rows(s, y, where), (PAGE, 2, 4))
        for s, y in zip(states, (g.reshape(k, (rows, 8)), v), strict=True)
    ]
    out = g.attention(q, *kv, pos, seq, g.input("table", I32, (1, 1)), scale=0.5, name="heads")
    act = g.sigmoid(g.reshape(gate, (rows, 8)))
    g.output(g.mul(g.reshape(out, (rows, 8)), act, name="kqv"))
    return g


def test_heads_that_lie_apart_and_the_gate_beside_them() -> None:
    plain, fused = gated_attention(), fuse_graph(gated_attention(), everything)
    products = ["mul_mat"] * 3
    assert ops(fused) == [*products, "cont", "qkv_heads", "attention", "sigmoid_mul"]
    q, k, v, *_ = next(n for n in fused.nodes if n.op == "qkv_heads").srcs
    assert q and k and v and (q.owner.name, k.owner.name, v.owner.name) == ("q", "k", "v")
    assert q.strides == (64, 32, 4) and q.view_offset == 0
    assert_same_attention(fused, plain)
    assert "qkv_heads" not in ops(fuse_graph(gated_attention(), always))


def assert_same_attention(fused: Graph, plain: Graph) -> None:
    values = {n: x for n, x in feed(plain).items() if n not in ("keys", "values")}
    results = []
    for g in (plain, fused):
        states = {n: np.zeros((PAGE, 8), np.float32) for n in ("keys", "values")}
        given = {"pos": [1, 2], "rows": [3, 4], "seq": [0, 0], "table": [[0]]}
        ids = {n: np.array(x, np.int32) for n, x in given.items()}
        results.append((evaluate(g, {**values, **states, **ids})["kqv"], states))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-5, atol=1e-6)
    for name, state in results[0][1].items():
        assert state[3:5].all() and not state[:3].any() and not state[5:].any()
        np.testing.assert_allclose(state, results[1][1][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["last", "other_pos"])
def test_attention_that_looks_elsewhere_is_left_alone(kind: str) -> None:
    assert "norm_qkv_rope" not in ops(fuse_graph(attention(**{kind: True}), everything))


def test_a_norm_that_is_read_twice_is_kept() -> None:
    g = ffn()
    h = next(n for n in g.nodes if n.name == "norm")
    g.output(g.relu(h))
    assert "rms_norm_mul" in ops(fuse_graph(g, everything))
