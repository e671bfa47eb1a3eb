"""Products whose rows lie further apart than they are long: parts of a joined value, which are made
within it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as replaced
from typing import Any

import numpy as np
import pytest
from exchanges import bound_to
from kernel_list import DEVICE, EQUAL, launches_of
from waited_for import some_of

from gguflow.engine.backends.base import Backend, find_backend
from gguflow.engine.backends.null.backend import NullBackend
from gguflow.engine.compile import PlacementRules, Plan, PlanOptions, compile_graph, within
from gguflow.engine.dataclass import replace
from gguflow.engine.graph import F32, DType, Graph, Role, Tensor, dtype_by_name, is_in_place
from gguflow.engine.load.random import random_model
from gguflow.engine.plan_key import PlanKey
from gguflow.engine.quants import encode
from gguflow.engine.scaling.plans import Plans
from gguflow.kernels.cuda import launch
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.kernels.cuda.launch import DeviceInfo, Launch

TYPES = ["f32", "f16", "bf16", "q4_0", "q8_0", "q6_K"]
COLUMNS = [1, 2, 5, 8, 16, 17, 33, 64, 100, 128, 300, 520]


def parts_of(op: str, sizes: Sequence[int], k: int, m: int, t: DType) -> tuple[Graph, Tensor]:
    """Products of a value with several weights, and what joins them."""
    g = Graph()
    x, norm = g.input("x", F32, (m, k)), g.input("norm", F32, (k,))
    made = []
    for i, n in enumerate(sizes):
        w = g.weight(f"w.{i}", t, (n, k))
        made.append(
            g.mul_mat(w, x) if op == "mul_mat" else g.op("norm_mul_mat", x, norm, w, eps=1e-5)
        )
    joined = made[0]
    for y in made[1:]:
        joined = g.concat(joined, y, axis=-1)
    return g, joined


def make_all_within(
    graph: Graph, placement: Any, order: Any, segments: Any, steps: Any
) -> dict[Tensor, Tensor]:
    """As `within.make_within` of parts that one device makes."""
    search, since = within._Search(graph, placement, order, segments, steps), {}
    for node in reversed(graph.nodes):
        parts = search.parts_of(node)
        for p in parts:
            p.apply()
        if parts:
            since[node] = graph.nodes[0]
    return since


def strided(node: Tensor) -> Tensor:
    """A node as a part in the middle of a value three times as wide."""
    m, n = node.shape
    g = Graph()
    whole = g.neg(g.input("x", F32, (m, 3 * n)))
    return replace(node, strides=whole.strides, view_of=whole, view_offset=4 * n)


@pytest.mark.parametrize("device", [DEVICE, EQUAL], ids=["fast", "equal"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", ["mul_mat", "norm_mul_mat"])
def test_launches_differ_by_where_they_write_alone(op: str, dtype: str, device: DeviceInfo) -> None:
    for m in COLUMNS:
        g, _ = parts_of(op, [4096], 1024, m, dtype_by_name(dtype))
        node = g.nodes[0]
        if not launch.supports(node, device.equal_bits):
            continue
        far = strided(node)
        assert launch.supports_strides(far, device), m
        dense, made = launches_of(node, device=device), launches_of(far, device=device)
        assert len(dense) == len(made)
        differ = []
        for a, b in zip(dense, made, strict=True):
            if isinstance(a, Gemm):
                assert isinstance(b, Gemm)
                assert replaced(b, d=a.d) == a and (a.d.ld, b.d.ld) == (4096, 3 * 4096)
                differ.append(a)
            else:
                assert isinstance(b, Launch) and (a.kernel, a.grid) == (b.kernel, b.grid)
                differ += [a] if a.args != b.args else []
        assert differ or m == 1


def test_others_write_dense_results() -> None:
    """Elsewhere than on Hopper, of several columns; what is no product; other layouts."""
    old = DeviceInfo("sm_80")
    for m, takes in ((1, True), (32, False)):
        g, _ = parts_of("mul_mat", [512], 1024, m, dtype_by_name("q4_0"))
        assert launch.supports_strides(strided(g.nodes[0]), old) == takes
    g = Graph()
    added = g.add(g.input("a", F32, (3, 8)), g.input("b", F32, (3, 8)))
    assert not launch.supports_strides(strided(added), DEVICE)
    g, _ = parts_of("mul_mat", [512], 1024, 16, dtype_by_name("f16"))
    turned = replace(strided(g.nodes[0]), strides=(4, 64))
    assert not launch.supports_strides(turned, DEVICE)


def test_what_is_joined_where_it_lies_takes_no_launch() -> None:
    g, joined = parts_of("mul_mat", [64, 32, 96], 64, 5, dtype_by_name("f16"))
    inner, outer = (n for n in g.nodes if n.op == "concat")
    assert outer is joined
    assert [len(launches_of(n)) for n in (inner, outer)] == [2, 2]
    *_, last = (n for n in g.nodes if n.op == "mul_mat")
    last.strides, last.view_of, last.view_offset = joined.strides, joined, 4 * 96
    assert is_in_place(joined, 1) and not is_in_place(joined, 0)
    assert len(launches_of(joined)) == 1
    inner.strides, inner.view_of = joined.strides, joined
    assert len(launches_of(joined)) == 0 and len(launches_of(inner)) == 2


@pytest.mark.parametrize(
    ("model", "n"),
    some_of({("llama3-8b:F16", 1), ("llama3-8b:F16", 128), ("llama3-8b:BF16", 17),
             ("llama3-8b:Q4_0", 16)},
            ("llama3-8b:F16", "llama3-8b:BF16", "llama3-8b:Q4_0"), (1, 16, 17, 128)),
)  # fmt: skip
def test_logits_of_a_large_model(model: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices that are not there and take what GPUs do: none of the logits is moved."""
    monkeypatch.setattr(NullBackend, "supports", lambda self, node: launch.supports(node))
    takes = lambda self, node: launch.supports_strides(node, DEVICE)  # noqa: E731
    monkeypatch.setattr(NullBackend, "supports_strides", takes)
    plans = Plans(random_model(model), 2, 640, 128)
    plan: Plan = plans._model.plan(PlanKey(n, 0, n, n, True))
    (join,) = (t for t in plan.nodes if t.op == "concat")
    assert launches_of(join) == []
    parts = [t for t in plan.nodes if t.owner is join and t is not join]
    assert [plan.placement.of[t] for t in parts] == plans.names
    for t in parts:
        gemms = [x for x in launches_of(t) if isinstance(x, Gemm)]
        assert all(x.d.ld == join.shape[1] for x in gemms)
    moved = [m for s in plan.steps if (m := getattr(s, "meeting", None)) and parts[1] in m.owners]
    assert moved == []


@pytest.mark.gpu
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", ["mul_mat", "norm_mul_mat"])
def test_parts_are_what_they_were(
    gpu: Any, op: str, dtype: str, equal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three products, of which one has an odd number of rows, in the memory of what joins
    them."""
    device = find_backend("cuda", {"equal_bits": True}) if equal else gpu
    rng, t, k = np.random.default_rng(1), dtype_by_name(dtype), 1024
    sizes = [512, 257, 640]
    raw = {
        f"w.{i}": encode(t, rng.standard_normal((n, k), np.float32) * k**-0.5)
        for i, n in enumerate(sizes)
    }
    held: dict[str, Any] = {}
    for m in COLUMNS:
        x, norm = rng.standard_normal((m, k), np.float32), rng.standard_normal(k, np.float32)
        if m > 2:
            x[1] *= 1e6  # what 16-bit floats do not hold
        results, in_parts = [], False
        for how in (None, make_all_within):
            g, joined = parts_of(op, sizes, k, m, t)
            if not device.supports(g.nodes[0]):
                break
            g.output(g.scale(joined, s=1.0))
            with monkeypatch.context() as patch:
                if how is not None:
                    patch.setattr("gguflow.engine.compile.plan.make_within", how)
                plan = compiled(g, device)
            made = [n for n in plan.nodes if n.op == op]
            assert all((n.owner is joined) == (how is not None) for n in made)
            uses = [s for n in made for s in launches_of(n, device=device.device.info)]
            in_parts = any(isinstance(s, Gemm) and not s.whole for s in uses)
            # Compiling has given the weights' rows the strides that the device wants.
            for w in () if held else plan.leaves(Role.WEIGHT):
                held[w.name] = device.load_weight(w, raw[w.name].reshape(-1).view(np.uint8), False)
            bound = bound_to([device], plan, weights=held)
            bound.inputs["x"][:] = x
            bound.inputs["norm"][:] = norm
            bound.run()
            results.append(bound.outputs[0].copy())
        if not results:
            continue
        dense, found = results
        if in_parts:  # of k, as a library likes: it may choose another algorithm
            assert ((found - dense) ** 2).sum() <= 1e-10 * (dense**2).sum(), m
        else:
            np.testing.assert_array_equal(found, dense, err_msg=f"{m} columns")


def compiled(g: Graph, device: Backend) -> Plan:
    return compile_graph(g, PlanOptions(PlacementRules([device]), fuse=False))
