"""Plans in which several devices exchange what each of them made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np

import gguflow.engine.ops  # noqa: F401  (registers them)
from gguflow.engine.backends.base import Backend, Buffer
from gguflow.engine.compile import PlacementRules, Plan, PlanOptions, compile_graph
from gguflow.engine.graph import F32, DType, Graph, Tensor
from gguflow.engine.quants import encode
from gguflow.engine.runtime import BoundPlan, Workspace, bind


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
    return bound_to(devices, exchanging_plan(devices, sizes))


def bound_to(
    devices: Sequence[Backend],
    plan: Plan,
    workspace: Workspace | None = None,
    weights: Mapping[str, Buffer] = {},  # noqa: B006
) -> BoundPlan:
    by_space = {d.space: d for d in devices}
    arenas = {s: by_space[s].alloc(max(a.nbytes, 1)) for s, a in plan.arenas.items()}
    return bind(plan, {d.name: d for d in devices}, weights, set(), {}, arenas, 1, workspace)


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


# -- sums whose rows are shared out ----------------------------------------------------------------

Sharing = tuple[int, int, DType | None]  # rows, their elements, weights of what reads the norms


def sharing_plan(devices: Sequence[Backend], cases: Sequence[Sharing]) -> Plan:
    """For each case two sums on a residual, the first with a norm and what reads it, the second as
    it is: by all devices for all rows, and by each for its own. The outputs are, device by device,
    what the norm's reader has, the same by shares, the second sum, the same by shares."""
    g, n = Graph(), len(devices)
    every: list[list[Tensor]] = []
    for i, (m, d, dtype) in enumerate(cases):
        bounds = [m * k // n for k in range(n + 1)]

        def given(name: str, shape: tuple[int, ...], i: int = i) -> list[Tensor]:
            made = [g.input(f"{name}.{i}@{k}", F32, shape) for k in range(n)]
            return [g.neg(t, name=f"{name}_.{i}@{k}") for k, t in enumerate(made)]

        r, p, q, w = (given(name, (m, d) if name != "w" else (d,)) for name in "rpqw")
        own = [g.cont(g.slice(t, 0, bounds[k], bounds[k + 1]), name=f"own.{i}@{k}")
               for k, t in enumerate(r)]  # fmt: skip
        first = [g.op("all_reduce_add", r[k], *p, name=f"a.{i}@{k}") for k in range(n)]
        normed = [g.rms_norm_mul(a, w[k], eps=1e-5, name=f"h.{i}@{k}") for k, a in enumerate(first)]
        second = [g.op("all_reduce_add", a, *q, name=f"b.{i}@{k}") for k, a in enumerate(first)]

        def shared(ws: Sequence[Tensor | None], own: Sequence[Tensor], parts: Sequence[Tensor],
                   name: str, i: int = i) -> list[Tensor]:  # fmt: skip
            brought = [t for pair in zip(own, parts, strict=True) for t in pair]
            return [
                g.op("all_reduce_norm", ws[k], *brought, rank=k, eps=1e-5, name=f"{name}.{i}@{k}")
                for k in range(n)
            ]

        both = shared(w, own, p, "both")
        mine = [g.slice(t, 0, m, t.shape[0]) for t in both]
        ends = shared([None] * n, mine, q, "end")
        for k in range(n):
            h, by_shares = normed[k], g.slice(both[k], 0, 0, m)
            if dtype is not None:
                matrix = g.input(f"m.{i}@{k}", dtype, (64, d))
                h, by_shares = (g.mul_mat(matrix, x, name=f"{name}.{i}@{k}")
                                for name, x in (("y", h), ("z", by_shares)))  # fmt: skip
            values = h, by_shares, second[k], ends[k]
            every.append([g.scale(v, s=1.0, name=f"out.{i}.{j}@{k}") for j, v in enumerate(values)])
    for each in every:
        for t in each:
            g.output(t)
    rules = [(rf"@{k}$", d.name) for k, d in enumerate(devices)]
    return compile_graph(g, PlanOptions(PlacementRules(devices, rules), fuse=False))


def fill_sharing(
    bound: BoundPlan, rng: np.random.Generator, cases: Sequence[Sharing], n: int
) -> None:
    """New inputs: weights and residuals the same for all devices; one row is large, one small."""
    for i, (m, d, dtype) in enumerate(cases):
        shapes = {"r": (m, d), "p": (m, d), "q": (m, d), "w": (d,)}
        for name, shape in shapes.items():
            common = rng.standard_normal(shape, np.float32)
            for k in range(n):
                x = common if name in "rw" else rng.standard_normal(shape, np.float32)
                bound.inputs[f"{name}.{i}@{k}"][:] = x
        matrix = rng.standard_normal((64, d)).astype(np.float32) * d**-0.5
        for k in range(n) if dtype is not None else ():
            into = bound.inputs[f"m.{i}@{k}"]
            raw = encode(dtype, matrix).reshape(-1).view(np.uint8) if dtype else matrix
            into.reshape(-1).view(np.uint8)[:] = raw


def check_sharing(
    bound: BoundPlan, rng: np.random.Generator, cases: Sequence[Sharing], n: int
) -> None:
    """One run of new inputs: the same bits both ways, near what numpy says."""
    fill_sharing(bound, rng, cases, n)
    bound.run()
    at = iter(range(len(bound.outputs)))
    for i, (m, d, dtype) in enumerate(cases):
        total = {
            name: reduce(np.add, (-bound.inputs[f"{name}.{i}@{k}"] for k in range(n)))
            for name in "pq"
        }
        first = total["p"] - bound.inputs[f"r.{i}@0"]
        scale = 1 / np.sqrt((first.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5)
        normed = first * scale * -bound.inputs[f"w.{i}@0"]
        for k in range(n):
            h, by_shares, second, end = (bound.outputs[next(at)] for _ in range(4))
            where = f"{m} x {d} {dtype and dtype.name}, device {k}"
            np.testing.assert_array_equal(second, total["q"] + first, err_msg=where)
            np.testing.assert_array_equal(end, second, err_msg=where)
            np.testing.assert_array_equal(by_shares, h, err_msg=where)
            if dtype is None:
                error = ((by_shares - normed) ** 2).sum() / (normed**2).sum()
                assert error < 1e-10, where


# -- plans that exchange over the same memory ------------------------------------------------------


def check_together(
    devices: Sequence[Backend], kinds: Sequence[Sequence[int] | Sequence[Sharing]], runs: int
) -> Workspace:
    """Plans of sums of these sizes, or of these shared rows, the largest first, run in turns over
    one workspace, of which none is larger than what the first asked for."""
    n, workspace, rng = len(devices), Workspace(), np.random.default_rng(len(devices))
    bounds = []
    for kind in kinds:
        is_shared = isinstance(kind[0], tuple)
        plan = sharing_plan(devices, kind) if is_shared else exchanging_plan(devices, kind)  # type: ignore[arg-type]
        is_larger = workspace.reserve(plan, {d.name: d for d in devices})
        assert is_larger == (not bounds), "the first plan was to be the largest"
        bounds.append(bound_to(devices, plan, workspace))
    for _ in range(runs):
        for i in rng.permutation(len(kinds)):
            if isinstance(kinds[i][0], tuple):
                check_sharing(bounds[i], rng, kinds[i], n)  # type: ignore[arg-type]
            else:
                check(bounds[i], rng)
    return workspace
