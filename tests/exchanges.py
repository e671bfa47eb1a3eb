"""Plans in which several devices exchange what each of them made."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

import gguflow.engine.ops  # noqa: F401  (registers them)
from gguflow.engine.backends.base import Backend
from gguflow.engine.compile import PlacementRules, PlanOptions, compile_graph
from gguflow.engine.graph import F32, Graph
from gguflow.engine.runtime import BoundPlan, bind


def exchanging(devices: Sequence[Backend], sizes: Sequence[int]) -> BoundPlan:
    """Every device negates an input of its own and has the sum of all, once for each size; the
    outputs are the sums, device by device."""
    g, n = Graph(), len(devices)
    sums = []
    for i, size in enumerate(sizes):
        parts = [g.neg(g.input(f"x.{i}@{k}", F32, (size,)), name=f"p.{i}@{k}") for k in range(n)]
        made = [g.op("all_reduce", *parts, name=f"s.{i}@{k}") for k in range(n)]
        sums.append([g.scale(m, s=1.0, name=f"out.{i}@{k}") for k, m in enumerate(made)])
    for each in sums:
        for t in each:
            g.output(t)
    rules = [(rf"@{k}$", d.name) for k, d in enumerate(devices)]
    plan = compile_graph(g, PlanOptions(PlacementRules(devices, rules), fuse=False))
    by_space = {d.space: d for d in devices}
    arenas = {s: by_space[s].alloc(max(a.nbytes, 1)) for s, a in plan.arenas.items()}
    return bind(plan, {d.name: d for d in devices}, {}, set(), {}, arenas, 1)


def fill(bound: BoundPlan, rng: np.random.Generator) -> list[np.ndarray]:
    """New inputs; the outputs to come, to the bit."""
    expected = []
    names = sorted(bound.inputs, key=lambda n: (int(n[2:].split("@")[0]), n))
    n = sum(name.startswith("x.0@") for name in names)
    for i in range(len(names) // n):
        parts = []
        for name in names[i * n : (i + 1) * n]:
            bound.inputs[name][:] = rng.standard_normal(bound.inputs[name].shape)
            parts.append(-bound.inputs[name])
        expected += [reduce(np.add, parts)] * n
    return expected


def check(bound: BoundPlan, rng: np.random.Generator) -> None:
    """One run of new inputs."""
    expected = fill(bound, rng)
    bound.run()
    for i, e in enumerate(expected):
        np.testing.assert_array_equal(bound.outputs[i], e, err_msg=bound.plan.graph.outputs[i].name)
