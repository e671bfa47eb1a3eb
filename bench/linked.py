"""What it costs a device and the host to meet: empty layers, side by side and in turns.

    python bench/linked.py [--layers 32] [--n-embd 4096] [--n-ff 11008] [-t 16] [--steps 200]
        [--device cuda] [--profile]

A layer is what a feed-forward block split over both needs: on the device h and idx are made; the
host takes both and makes one value (a small addition); the device makes one of its own and adds the
two. Prints the median microseconds of a run and of a layer, side by side and in turns, and for
comparison the same nodes on the device alone: the difference is the two meetings of a layer.
--profile adds what a layer's steps take, from a run with clocks.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from typing import Any

import numpy as np

import gguflow.engine.ops  # noqa: F401  (registers the ops)
from gguflow.engine.backends.base import Backend, find_backend
from gguflow.engine.compile import PlacementRules, PlanOptions, compile_graph
from gguflow.engine.graph import F32, Graph
from gguflow.engine.runtime import BoundPlan, bind


def layers(n: int, n_embd: int, n_ff: int) -> Graph:
    g = Graph()
    x = g.input("x", F32, (1, n_embd))
    wide = g.input("wide", F32, (1, n_ff))
    for i in range(n):
        with g.scope(f"blk.{i}"):
            h = g.scale(x, s=0.5, name="h")
            idx = g.add(wide, g.slice(h, 1, 0, 1), name="idx")
            hot = g.scale(h, s=0.25, name="hot")
            cold = g.add(h, g.slice(idx, 1, 0, n_embd), name="cold")
            x = g.add(hot, cold, name="merge")
    g.output(x)
    return g


def bound(
    backends: dict[str, Backend], args: argparse.Namespace, cold: str, linked: bool
) -> BoundPlan:
    device = args.device
    rules = PlacementRules(tuple(backends.values()), ((r"blk\.\d+\.cold", cold), (".*", device)))
    plan = compile_graph(layers(args.layers, args.n_embd, args.n_ff), PlanOptions(rules, False))
    by_space = {b.space: b for b in backends.values()}
    arenas = {s: by_space[s].alloc(max(a.nbytes, 64)) for s, a in plan.arenas.items()}
    os.environ["GGUFLOW_LINK"] = str(int(linked))
    made = bind(plan, backends, {}, set(), {}, arenas, args.threads)
    if linked and made.unlinked:
        raise SystemExit(f"not linked: {made.unlinked}")
    rng = np.random.default_rng(0)
    for a in made.inputs.values():
        a[:] = rng.standard_normal(a.shape)
    return made


def median_us(plan: BoundPlan, steps: int) -> float:
    for _ in range(5):  # kernels, the capture
        plan.run()
    times = []
    for _ in range(steps):
        begin = time.perf_counter_ns()
        plan.run()
        times.append(time.perf_counter_ns() - begin)
    return float(np.median(times)) / 1e3


def print_profile(plan: BoundPlan) -> None:
    total: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(20):
        rows, spans = plan.run_timed()
        for r, (start, end) in zip(rows, spans.tolist(), strict=True):
            total[r.backend, r.name.split(".", 2)[-1]].append((end - start) / 1e3)
    for (backend, name), us in total.items():
        print(f"    {backend:8} {name:16} {np.median(us):8.2f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--n-embd", type=int, default=4096)
    parser.add_argument("--n-ff", type=int, default=11008)
    parser.add_argument("-t", "--threads", type=int, default=None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    found = [find_backend(b, {"n_threads": args.threads}) for b in (args.device, "cpu")]
    backends = {b.name: b for b in found}
    args.device = found[0].name
    measured: dict[str, tuple[BoundPlan, float]] = {}
    for name, cold, linked in (
        ("device alone", args.device, False),
        ("by segments", "cpu", False),
        ("linked", "cpu", True),
    ):
        plan = bound(backends, args, cold, linked)
        measured[name] = plan, median_us(plan, args.steps)
    check(measured)
    alone = measured["device alone"][1]
    for name, (plan, us) in measured.items():
        extra = (
            f", {(us - alone) / args.layers / 2:6.2f} us a meeting"
            if plan.plan.segments[1:]
            else ""
        )
        print(f"{name:14} {us:9.1f} us a run, {us / args.layers:7.2f} us a layer{extra}")
    if args.profile:
        print_profile(measured["linked"][0])


def check(found: dict[str, tuple[BoundPlan, Any]]) -> None:
    values = [plan.outputs[0].copy() for plan, _ in found.values()]
    for v in values[1:]:
        np.testing.assert_allclose(v, values[0], rtol=1e-5)


if __name__ == "__main__":
    main()
