"""Fewer rows than a plan has: the same values for those that count, no byte touched behind them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gguflow.engine.ops
import gguflow.engine.quants  # noqa: F401  (both register what they define)
from gguflow.engine.backends.base import Backend, find_backend
from gguflow.engine.backends.numpy import evaluate
from gguflow.engine.compile import PlacementRules, PlanOptions, compile_graph
from gguflow.engine.compile.batch_rows import RowsError, batch_rows, row_operands
from gguflow.engine.graph import F16, F32, I32, Graph, Role, Tensor, dtype_by_name
from gguflow.engine.plan_key import PAGE
from gguflow.engine.quants import encode
from gguflow.engine.runtime import BoundPlan, bind

BACKENDS = {name: find_backend(name, {"n_threads": 2}) for name in ("cpu", "numpy")}
HEADS, HEAD, VOCAB, CTX = 2, 16, 40, PAGE
WIDTH = HEADS * HEAD
RUBBISH = 0x7B


def decoder(n: int, n_out: int, n_layer: int = 2, dtype: str = "f32") -> Graph:
    """Layers of a decoder as models record them; n_out rows of logits chosen by `out.ids`."""
    g = Graph()
    t = dtype_by_name(dtype)
    names = "tokens", "pos", "rows.full", "seq"
    tokens, pos, rows, seq = (g.input(x, I32, (n,)) for x in names)
    table = g.input("table.full", I32, (1, 1))

    def w(name: str, *shape: int) -> Tensor:
        return g.weight(name, t if len(shape) > 1 else F32, shape)

    x = g.get_rows(w("embd", VOCAB, WIDTH), tokens, name="embd_rows")
    for i in range(n_layer):
        with g.scope(f"blk.{i}"):
            h = g.mul(g.rms_norm(x, eps=1e-5), w(f"{i}.norm", WIDTH), name="norm")
            q, k, v = (g.mul_mat(w(f"{i}.{p}", WIDTH, WIDTH), h, name=p) for p in "qkv")
            q, k = (
                g.rope(g.reshape(a, (n, HEADS, HEAD)), pos, n_dims=HEAD, mode="neox")
                for a in (q, k)
            )
            keys = g.set_rows(
                g.state(f"{i}.keys", F16, (CTX, WIDTH)), g.reshape(k, (n, WIDTH)), rows
            )
            values = g.set_rows(g.state(f"{i}.values", F16, (CTX, WIDTH)), v, rows)
            split = (CTX, HEADS, HEAD)
            kv = g.reshape(keys, split), g.reshape(values, split)
            a = g.attention(q, *kv, pos, seq, table, scale=0.25)
            x = g.add(g.mul_mat(w(f"{i}.o", WIDTH, WIDTH), g.reshape(a, (n, WIDTH))), x)
            gate, up = (g.mul_mat(w(f"{i}.{p}", 64, WIDTH), x) for p in ("gate", "up"))
            x = g.add(g.mul_mat(w(f"{i}.down", WIDTH, 64), g.mul(g.silu(gate), up)), x, name="out")
    g.output(x)
    if n_out:
        chosen = g.get_rows(x, g.input("out.ids", I32, (n_out,)), name="chosen")
        g.output(g.mul_mat(w("head", VOCAB, WIDTH), chosen, name="logits"))
    return g


def prepared(g: Graph, backend: Backend, rng: np.random.Generator) -> tuple[BoundPlan, dict]:
    """The graph on one backend, its arena and states full of rubbish, and its weights."""
    plan = compile_graph(g, PlanOptions(PlacementRules([backend])))
    leaves = plan.leaves(Role.WEIGHT)
    values = {
        t.name: (rng.standard_normal(t.shape) / np.sqrt(t.shape[-1])).astype(np.float32)
        for t in leaves
    }
    raw = {t.name: encode(t.dtype, values[t.name]).reshape(-1).view(np.uint8) for t in leaves}
    held, packed = {}, set()
    for t in leaves:
        users = [n for n in plan.nodes if t in n.srcs]
        is_packed = backend.packed_bytes(t, users) > 0
        held[t.name] = backend.load_weight(t, raw[t.name].copy(), is_packed)
        packed |= {t.name} if is_packed else set()
    states = {t.name: backend.alloc(t.nbytes) for t in plan.leaves(Role.STATE)}
    arenas = {s: backend.alloc(max(a.nbytes, 64)) for s, a in plan.arenas.items()}
    for b in arenas.values():
        b.host()[:] = RUBBISH
    bound = bind(plan, {backend.name: backend}, held, packed, states, arenas, 2)
    return bound, {t.name: raw[t.name] for t in leaves}


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 20), n_out=st.integers(0, 6), dtype=st.sampled_from(["f32", "f16", "q8_0"]),
    backend=st.sampled_from(["cpu", "numpy"]), seed=st.integers(0, 2**20), data=st.data(),
)  # fmt: skip
def test_live_rows_have_the_values_of_the_whole(
    n: int, n_out: int, dtype: str, backend: str, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    bound, weights = prepared(decoder(n, n_out, dtype=dtype), BACKENDS[backend], rng)
    past = 0
    states = {t.name: np.zeros(t.shape, np.float16) for t in bound.plan.leaves(Role.STATE)}
    for _ in range(3):
        live = {"tokens": data.draw(st.integers(1, min(n, CTX - past)))}
        m = live["tokens"]
        if n_out:
            live["outputs"] = data.draw(st.integers(1, n_out))
        fed = {
            "tokens": rng.integers(0, VOCAB, m, np.int32),
            "pos": np.arange(past, past + m, dtype=np.int32),
            "out.ids": rng.integers(0, m, live.get("outputs", 0), np.int32),
        }
        fed |= {"rows.full": fed["pos"], "seq": np.zeros(m, np.int32)}
        fed["table.full"] = np.zeros((1, 1), np.int32)
        for name, array in bound.inputs.items():
            array[:] = -1
            array[: len(fed[name])] = fed[name]
        bound.run(live)
        alone = decoder(m, live.get("outputs", 0), dtype=dtype)
        feeds = {k: v for k, v in (fed | weights | states).items() if k in alone.leaves}
        expected = evaluate(alone, feeds)
        for t, plain, found in zip(
            bound.plan.graph.outputs, alone.outputs, bound.outputs, strict=True
        ):
            wanted = expected[plain.name]
            error = np.sum((found[: len(wanted)] - wanted) ** 2) / np.sum(wanted**2)
            assert error < 1e-3, t.name
        past += m
        if past == CTX:
            break


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_rows_behind_are_not_touched(backend: str) -> None:
    n, n_out = 11, 4
    rng = np.random.default_rng(3)
    bound, _ = prepared(decoder(n, n_out), BACKENDS[backend], rng)
    for a in bound.inputs.values():
        a[:] = -1
    bound.inputs["tokens"][:5], bound.inputs["pos"][:5], bound.inputs["out.ids"][:2] = 1, 0, [4, 0]
    bound.inputs["seq"][:5], bound.inputs["table.full"][:] = 0, 0
    for live, used in (
        ({"tokens": 5, "outputs": 2}, (5, 2)),
        ({"tokens": 5, "outputs": 1}, (5, 1)),
    ):
        for array in bound.outputs:
            array.view(np.uint8)[:] = RUBBISH
        bound.run(live)
        for array, rows in zip(bound.outputs, used, strict=True):
            raw = array.view(np.uint8)
            assert (raw[rows:] == RUBBISH).all() and not (raw[:rows] == RUBBISH).all(axis=1).any()
    bound.run()
    assert not (bound.outputs[0].view(np.uint8)[5:] == RUBBISH).all(axis=1).any()


@pytest.mark.parametrize("dtype", ["q8_0", "f16", "q4_0"])
def test_on_the_cpu_the_bits_do_not_depend_on_the_rows_beside(dtype: str) -> None:
    """With as many rows as ways of computing few of them, and scratch that is sized anew."""
    n = 40
    rng = np.random.default_rng(5)
    bound, _ = prepared(decoder(n, 3, dtype=dtype), BACKENDS["cpu"], rng)
    tokens = rng.integers(0, VOCAB, n).astype(np.int32)

    def logits(m: int, live: bool) -> np.ndarray:
        bound.inputs["tokens"][:], bound.inputs["pos"][:] = tokens, np.arange(n) % CTX
        bound.inputs["rows.full"][:] = -1
        bound.inputs["seq"][:], bound.inputs["table.full"][:] = 0, 0
        bound.inputs["out.ids"][:] = [m - 1, 0, 0]
        bound.run({"tokens": m, "outputs": 1} if live else None)
        return bound.outputs[1][0].copy()

    for m in (1, 2, 3, 4, 5, 8, 9, 16, 17, 39, 40, 1):
        np.testing.assert_array_equal(logits(m, True), logits(m, False), err_msg=str(m))


def test_names() -> None:
    g = decoder(6, 2, n_layer=1)
    found = batch_rows(g)
    by_name = {t.name: name for t, name in found.items()}
    assert {by_name[x] for x in ("tokens", "pos", "rows.full", "embd_rows", "blk.0.norm")} == {
        "tokens"
    }
    assert {by_name[x] for x in ("out.ids", "chosen", "logits")} == {"outputs"}
    assert not {"embd", "0.keys", "blk.0.set_rows"} & set(by_name)
    attention = next(n for n in g.nodes if n.op == "attention")
    assert row_operands(attention, found) == [None, 0, 3, 4]  # not keys, values, pages
    assert row_operands(next(n for n in g.nodes if n.name == "chosen"), found) == [None, 1]


def test_views_that_move_rows_lose_the_name() -> None:
    g = Graph()
    tokens = g.input("tokens", I32, (4,))
    x = g.get_rows(g.weight("w", F32, (9, 4)), tokens)
    for view, keeps in (
        (g.reshape(x, (4, 2, 2)), True), (g.reshape(x, (2, 8)), False),
        (g.transpose(x), False), (g.slice(x, 1, 1, 3), True), (g.slice(x, 0, 1, 4), False),
        (g.permute(g.reshape(x, (4, 2, 2)), (0, 2, 1)), True),
        (g.slice(g.reshape(x, (2, 2, 4)), 0, 0, 2), False),
    ):  # fmt: skip
        node = g.output(g.neg(view))
        assert (node in batch_rows(g)) is keeps, view


def test_a_matrix_for_each_row_is_computed_in_full() -> None:
    g = Graph()
    x = g.get_rows(g.weight("w", F32, (9, 12)), g.input("tokens", I32, (4,)))
    x = g.reshape(x, (4, 3, 4))
    one = g.output(g.mul_mat(g.weight("a", F32, (5, 4)), x))
    each = g.output(g.mul_mat(g.weight("b", F32, (2, 5, 4)), x))
    other = g.output(g.add(x, g.input("other", F32, (4, 3, 4))))
    found = batch_rows(g)
    assert one in found and each not in found and other not in found


@pytest.mark.parametrize("live", [{"tokens": 0}, {"tokens": 7}, {"outputs": 3}])
def test_rows_that_are_not_there(live: dict[str, int]) -> None:
    bound, _ = prepared(decoder(6, 2, 1), BACKENDS["cpu"], np.random.default_rng(0))
    with pytest.raises(RowsError, match=f"{next(iter(live))}: {next(iter(live.values()))} rows of"):
        bound.run(live)
