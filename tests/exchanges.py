"""Plans in which several devices exchange what each of them made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

import gguflow.engine.ops  # noqa: F401  (registers them)
from gguflow.engine.backends.base import Backend
from gguflow.engine.compile import PlacementRules, Plan, PlanOptions, compile_graph
from gguflow.engine.graph import F32, Graph
from gguflow.engine.runtime import BoundPlan, bind


def every_other(i: int) -> bool:
    return i % 2 == 1


def exchanging_plan(
    devices: Sequence[Backend], sizes: Sequence[int], adds: Callable[[int], bool] = every_other
) -> Plan:
    """Every device negates an input of its own and has the sum of all, once for each size, where
    `adds` says so added to a residual of its own; the outputs are the sums, device by device."""
    g, n = Graph(), len(devices)
    sums = []
    for i, size in enumerate(sizes):
        parts = [g.neg(g.input(f"x.{i}@{k}", F32, (size,)), name=f"p.{i}@{k}") for k in range(n)]
        op, rs = ("all_reduce_add", range(n)) if adds(i) else ("all_reduce", range(0))
        more = [[g.neg(g.input(f"r.{i}@{k}", F32, (size,)), name=f"q.{i}@{k}")] for k in rs]
        more = more or [[]] * n
        made = [g.op(op, *more[k], *parts, name=f"s.{i}@{k}") for k in range(n)]
        sums.append([g.scale(m, s=1.0, name=f"out.{i}@{k}") for k, m in enumerate(made)])
    for each in sums:
        for t in each:
            g.output(t)
    rules = [(rf"@{k}$", d.name) for k, d in enumerate(devices)]
    return compile_graph(g, PlanOptions(PlacementRules(devices, rules), fuse=False))


def exchanging(devices: Sequence[Backend], sizes: Sequence[int]) -> BoundPlan:
    """The same, to be run."""
    plan = exchanging_plan(devices, sizes)
    by_space = {d.space: d for d in devices}
    arenas = {s: by_space[s].alloc(max(a.nbytes, 1)) for s, a in plan.arenas.items()}
    return bind(plan, {d.name: d for d in devices}, {}, set(), {}, arenas, 1)


def fill(bound: BoundPlan, rng: np.random.Generator) -> list[np.ndarray]:
    """New inputs; the outputs to come, to the bit."""
    for x in bound.inputs.values():
        x[:] = rng.standard_normal(x.shape)
    n = sum(name.startswith("x.0@") for name in bound.inputs)
    expected = []
    for i in range(len(bound.outputs) // n):
        total = reduce(np.add, (-bound.inputs[f"x.{i}@{k}"] for k in range(n)))
        for k in range(n):
            r = bound.inputs.get(f"r.{i}@{k}")
            expected.append(total if r is None else total - r)
    return expected


def check(bound: BoundPlan, rng: np.random.Generator) -> None:
    """One run of new inputs."""
    expected = fill(bound, rng)
    bound.run()
    for i, e in enumerate(expected):
        np.testing.assert_array_equal(bound.outputs[i], e, err_msg=bound.plan.graph.outputs[i].name)
