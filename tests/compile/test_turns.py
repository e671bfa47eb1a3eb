"""Schedules over any number of devices, run in turns: the values of one device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from remote_device import RemoteBackend

import gguflow.engine.ops  # noqa: F401  (registers them)
from gguflow.engine.backends.base import Backend, UnsupportedStepError, find_backend
from gguflow.engine.backends.numpy import NumpyBackend, evaluate
from gguflow.engine.compile import (
    Meeting,
    PlacementRules,
    Plan,
    PlanOptions,
    Recv,
    Send,
    compile_graph,
)
from gguflow.engine.graph import F32, I32, Graph, Role
from gguflow.engine.runtime import BoundPlan, bind
from gguflow.engine.runtime.turns import Turns


class Other(RemoteBackend):
    name, space = "other", "other:0"


def backends() -> list[Backend]:
    return [RemoteBackend(), Other(), find_backend("cpu", {"n_threads": 1}), NumpyBackend()]


def random_graph(rng: np.random.Generator) -> Graph:
    """Additions, views, and a state that is written and read more than once."""
    g = Graph()
    ids, state = g.input("ids", I32, (2,)), g.state("s", F32, (5, 4))
    made = [g.input("a", F32, (2, 4)), g.weight("w", F32, (2, 4))]
    for i in range(rng.integers(3, 25)):
        x, y = (made[-1 - rng.integers(min(len(made), 5))] for _ in range(2))
        kind = rng.random()
        if kind < 0.15:
            state_rows = g.set_rows(state, x, ids, name=f"write{i}")
            made.append(g.add(g.slice(state_rows, 0, 1, 3), y, name=f"n{i}"))
        elif kind < 0.3:
            made.append(g.add(x, g.slice(y, 0, 0, 1), name=f"n{i}"))
        else:
            made.append(g.add(x, g.scale(y, s=0.5, name=f"half{i}"), name=f"n{i}"))
    for t in made[2::3]:
        g.output(t)
    g.output(made[-1])
    return g


def bound(plan: Plan, order: list[Backend], weights: dict[str, np.ndarray]) -> BoundPlan:
    by_name = {b.name: b for b in order}
    by_space = {b.space: b for b in order}

    def home(t):  # type: ignore[no-untyped-def]
        return by_name[plan.placement.of[t]]

    held = {
        t.name: home(t).load_weight(t, weights[t.name].view(np.uint8).reshape(-1), False)
        for t in plan.leaves(Role.WEIGHT)
    }
    states = {t.name: home(t).alloc(t.nbytes) for t in plan.leaves(Role.STATE)}
    arenas = {s: by_space[s].alloc(max(a.nbytes, 1)) for s, a in plan.arenas.items()}
    return bind(plan, by_name, held, set(), states, arenas, 1)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_any_placement_gives_the_values_of_one_device(seed: int, n_backends: int) -> None:
    rng = np.random.default_rng(seed)
    order = backends()[:n_backends]
    graph = random_graph(np.random.default_rng(seed))
    home = order[rng.integers(n_backends)].name
    rules = [(r"^write", home), ("^s$", home)]  # a state is written where it lives
    rules += [
        (rf"^{n.name}$", order[rng.integers(n_backends)].name)
        for n in graph.nodes
        if n.op != "set_rows"
    ]
    for leaf in ("a", "w", "ids"):
        rules.append((f"^{leaf}$", order[rng.integers(n_backends)].name))
    plan = compile_graph(
        random_graph(np.random.default_rng(seed)),
        PlanOptions(PlacementRules(order, rules), fuse=False),
    )
    w = rng.standard_normal((2, 4)).astype(np.float32)
    run = bound(plan, order, {"w": w})
    state = np.zeros((5, 4), np.float32)
    for _ in range(3):
        a = rng.standard_normal((2, 4)).astype(np.float32)
        ids = rng.choice(5, 2, replace=False).astype(np.int32)
        feeds = {"a": a, "w": w, "ids": ids, "s": state}
        expected = evaluate(graph, {k: v for k, v in feeds.items() if k in graph.leaves})
        for name, value in (("a", a), ("ids", ids)):
            run.inputs[name][:] = value
        run.run()
        for t, found in zip(plan.graph.outputs, run.outputs, strict=True):
            np.testing.assert_allclose(found, expected[t.name], rtol=1e-6, atol=1e-6)


def test_every_send_comes_before_its_receive() -> None:
    order = backends()[:3]
    graph = random_graph(np.random.default_rng(7))
    rules = [(rf"^n{i}$", order[i % 3].name) for i in range(99)]
    plan = compile_graph(graph, PlanOptions(PlacementRules(order, rules), fuse=False))
    sent = set()
    for s in plan.steps:
        if isinstance(s, Send):
            sent.add(s.meeting)
        elif isinstance(s, Recv):
            sent.remove(s.meeting)
    assert not sent and len({s.backend for s in plan.segments}) == 3


def test_one_device_is_one_program_without_meetings() -> None:
    order = [find_backend("cpu", {"n_threads": 1})]
    plan = compile_graph(
        random_graph(np.random.default_rng(1)), PlanOptions(PlacementRules(order), fuse=False)
    )
    assert plan.steps == plan.nodes and not plan.brought
    run = bound(plan, order, {"w": np.zeros((2, 4), np.float32)})
    assert isinstance(run.runner, Turns) and len(run.runner.programs) == 1 and run.unlinked is None


@pytest.mark.parametrize("backend", [b.name for b in backends()[2:]])
def test_what_a_backend_cannot_run_is_refused_by_name(backend: str) -> None:
    node = Graph().input("blk.0.ffn.down", F32, (4,))
    step = Send(Meeting(0, backend, "other", node, node, [node]))
    with pytest.raises(UnsupportedStepError, match=f"{backend} has .* run send of blk.0.ffn.down"):
        find_backend(backend).lower([step], None)  # type: ignore[arg-type]
