"""Microseconds of what cards exchange, from chains of it; used by cards.py.

Sums of parts by size, in the form that is chosen and in both, beside NCCL's where torch is there;
and a prompt's sums on a residual with their norms and a small product that reads these, by all
cards for all rows and by each for its share.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

from gguflow.engine.backends.base import Backend, find_backend
from gguflow.engine.compile import PlacementRules, PlanOptions, compile_graph
from gguflow.engine.graph import F16, F32, Graph
from gguflow.engine.runtime import BoundPlan, bind
from gguflow.engine.scaling.machine import H200
from gguflow.kernels.cuda import all_reduce

CHAIN = 256  # exchanges of one run
SIZES = (256, 4096, 16384, 65536, 262144, 1048576, 4194304)  # floats of a part
# Bytes up to which parts are sent whole to each: as it is, always, never.
FORMS = {"chosen": all_reduce.SMALL, "one-shot": 1 << 60, "two-shot": -1}
PROMPTS = ((512, 4096), (512, 8192), (2048, 4096))  # rows and their elements
LINKS = 32  # sums of a prompt's chain


def chain(devices: list[Backend], size: int, n: int) -> BoundPlan:
    """n sums of the same parts, one after the other; for n = 0 all but the sums."""
    g = Graph()
    made = [g.input(f"x@{k}", F32, (size,)) for k in range(len(devices))]
    for i in range(CHAIN):
        parts = [g.scale(t, s=1 / len(devices), name=f"p{i}@{k}") for k, t in enumerate(made)]
        made = parts if i >= n else [
            g.op("all_reduce", *parts, name=f"s{i}@{k}") for k in range(len(devices))
        ]  # fmt: skip
    for t in made:
        g.output(t)
    return bound_to(g, devices)


def seconds(bound: BoundPlan) -> float:
    for _ in range(3):
        bound.run()
    taken = []
    for _ in range(7):
        began = time.perf_counter()
        bound.run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def exchanges(names: list[str], constants: str | None) -> None:
    devices = [find_backend(n) for n in names]
    curve: list[tuple[float, float]] = []
    for size in SIZES:
        by_form: dict[str, float] = {}
        for form, small in FORMS.items():
            all_reduce.SMALL = small
            taken = seconds(chain(devices, size, CHAIN)) - seconds(chain(devices, size, 0))
            by_form[form] = 1e6 * taken / CHAIN
        all_reduce.SMALL = FORMS["chosen"]
        us = by_form["chosen"]
        nccl = nccl_us(len(names), size)
        beside = "".join(f"   {form} {t:8.2f}" for form, t in by_form.items())
        beside += "" if nccl is None else f"   NCCL {nccl:8.1f}"
        print(f"{4 * size:9} bytes, us:{beside}", flush=True)
        print(json.dumps({"floats": size, "cards": len(names), "us": by_form, "nccl_us": nccl}))
        curve.append(
            (4.0 * size, max(us, curve[-1][1] if curve else 0.0))
        )  # a noisy one is no gain
    if constants:
        source = f"exchanges between {' and '.join(names)}; the rest is {H200.name}'s"
        measured = replace(
            H200, name=devices[0].processor or names[0], source=source, exchange=tuple(curve)
        )
        Path(constants).write_text(measured.json(), encoding="utf-8")


def nccl_us(n: int, size: int) -> float | None:
    """Microseconds of NCCL's all_reduce, one after the other in one process."""
    try:
        import torch
        from torch.cuda import nccl
    except ImportError:
        return None
    if torch.cuda.device_count() < n:
        return None
    parts = [torch.ones(size, device=f"cuda:{k}") for k in range(n)]
    times = []
    for _ in range(5):
        for k in range(n):
            torch.cuda.synchronize(k)
        began = time.perf_counter()
        for _ in range(CHAIN):
            nccl.all_reduce(parts)
        for k in range(n):
            torch.cuda.synchronize(k)
        times.append(1e6 * (time.perf_counter() - began) / CHAIN)
    return statistics.median(times)


# -- sums on a residual ----------------------------------------------------------------------------


def prompt_chain(devices: list[Backend], m: int, d: int, n: int, shared: bool) -> BoundPlan:
    """n times: a sum on the residual, its norm, and a product of 64 rows that reads that."""
    g, k_all = Graph(), range(len(devices))
    bounds = [m * k // len(devices) for k in range(len(devices) + 1)]
    parts = [g.neg(g.input(f"part@{k}", F32, (m, d)), name=f"p@{k}") for k in k_all]
    whole = [g.neg(g.input(f"residual@{k}", F32, (m, d)), name=f"r@{k}") for k in k_all]
    own = [g.cont(g.slice(t, 0, bounds[k], bounds[k + 1]), name=f"own@{k}")
           for k, t in enumerate(whole)]  # fmt: skip
    weights = [g.weight(f"norm@{k}", F32, (d,)) for k in k_all]
    matrices = [g.weight(f"matrix@{k}", F16, (64, d)) for k in k_all]
    read = [g.neg(g.input(f"read@{k}", F32, (m, 64)), name=f"z@{k}") for k in k_all]
    for i in range(n):
        if shared:
            brought = [t for pair in zip(own, parts, strict=True) for t in pair]
            both = [
                g.op("all_reduce_norm", weights[k], *brought, rank=k, eps=1e-5, name=f"s{i}@{k}")
                for k in k_all
            ]
            normed = [g.slice(t, 0, 0, m) for t in both]
            own = [g.slice(t, 0, m, t.shape[0]) for t in both]
        else:
            whole = [g.op("all_reduce_add", whole[k], *parts, name=f"s{i}@{k}") for k in k_all]
            normed = [g.rms_norm_mul(t, weights[k], eps=1e-5, name=f"h{i}@{k}")
                      for k, t in enumerate(whole)]  # fmt: skip
        read = [g.op("mul_mat_add", matrices[k], t, read[k], name=f"y{i}@{k}")
                for k, t in enumerate(normed)]  # fmt: skip
    for t in read:
        g.output(t)
    return bound_to(g, devices)


def bound_to(g: Graph, devices: list[Backend]) -> BoundPlan:
    """Weights are what memory holds."""
    rules = [(rf"@{k}$", d.name) for k, d in enumerate(devices)]
    plan = compile_graph(g, PlanOptions(PlacementRules(devices, rules), fuse=False))
    arenas = {d.space: d.alloc(max(plan.arenas[d.space].nbytes, 1)) for d in devices}
    by_space = {d.space: d for d in devices}
    weights = {
        t.name: by_space[plan.space_of(t)].alloc(t.nbytes)
        for t in g.leaves.values() if t.role.name == "WEIGHT"
    }  # fmt: skip
    return bind(plan, {d.name: d for d in devices}, weights, set(), {}, arenas)


def prompts(names: list[str]) -> None:
    devices = [find_backend(n) for n in names]
    for m, d in PROMPTS:
        us = {}
        for form, shared in (("whole", False), ("shared", True)):
            least = seconds(prompt_chain(devices, m, d, 1, shared))
            taken = seconds(prompt_chain(devices, m, d, 1 + LINKS, shared))
            us[form] = 1e6 * (taken - least) / LINKS
        beside = "".join(f"   {form} {t:8.2f}" for form, t in us.items())
        print(f"{m:5} rows of {d:5}, sum, norm and a product, us:{beside}", flush=True)
        print(json.dumps({"rows": m, "elements": d, "cards": len(names), "us": us}), flush=True)
