"""One model over several cards, beside one: speeds, exchanges, results.

    python bench/cards.py 2 --shapes llama3-8b:Q4_0,llama3-8b:F16 [-p 512] [-n 128]
        [--sequences 1,16,64,128] [-sm tensor] [-r 5]
    python bench/cards.py 2 --exchanges [--constants mine.json]
    python bench/cards.py 2 --equal llama3-8b:Q4_0
    python bench/cards.py 2 --step llama3-8b:Q4_0
    python bench/cards.py 4 --all [--base 2]

For each shape, with random weights: tokens per second on one card and on all, in turns, each in a
process of its own, and their ratio; with --alone 0 only on all, with --base 2 on two instead of
one. Beside each figure stands what `gguflow scale` forecasts for cards of --machine, and how far it
is off. --exchanges: microseconds of an all_reduce by size of the parts, in the form that is chosen
and in both, and of NCCL's where torch is there, from chains of them; --constants writes those of
two cards as a machine for `gguflow scale`, whose other figures are the h200 preset's. --equal:
logits of a prompt and of steps on one card and on all. --step: the time of one decode step by op,
of each card. --all: all of that for the shapes whose curves docs/scaling.md shows, at 1, 16, 64 and
128 sequences. All print JSON lines after what people read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gguflow.engine.backends.base import Backend, find_backend
from gguflow.engine.compile import PlacementRules, PlanOptions, compile_graph
from gguflow.engine.graph import F32, Graph
from gguflow.engine.load.random import random_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.profile import Profile
from gguflow.engine.runtime import BoundPlan, bind
from gguflow.engine.scaling import Question, find_machine, forecast
from gguflow.engine.scaling.machine import H200
from gguflow.kernels.cuda import all_reduce

CHAIN = 256  # exchanges of one run
SIZES = (256, 4096, 16384, 65536, 262144, 1048576, 4194304)  # floats of a part
# Bytes up to which parts are sent whole to each: as it is, always, never.
FORMS = {"chosen": all_reduce.SMALL, "one-shot": 1 << 60, "two-shot": -1}
# 70B in F16 is more than one card holds beside a context.
CURVES = ("llama3-8b:Q4_0,llama3-8b:F16", "llama3-70b:Q4_0,llama3-70b:Q8_0", "llama3-70b:F16")
SEQUENCES = "1,16,64,128"


# -- speeds ----------------------------------------------------------------------------------------


def speeds(shape: str, devices: list[str], args: argparse.Namespace) -> dict[str, float]:
    """Tokens per second by test of one process."""
    found: dict[str, float] = {}
    mode = args.split if len(devices) > 1 else "none"
    base = [sys.executable, "-m", "gguflow", "bench", "--random", shape, "-o", "json",
            "--devices", ",".join(devices), "-sm", mode]  # fmt: skip
    runs = [["-p", str(args.p), "-n", str(args.n), "-r", str(args.r)]]
    if args.sequences:
        runs.append(["--sequences", args.sequences, "-npp", "128", "-ntg", "128"])
    for extra in runs:
        done = subprocess.run([*base, *extra], capture_output=True, text=True)
        if done.returncode:
            print(f"{shape} on {','.join(devices)}: {done.stderr.strip().splitlines()[-1]}")
            continue
        for row in json.loads(done.stdout):
            found |= _speed(row)
    return found


def _speed(row: dict[str, Any]) -> dict[str, float]:
    if "speed_tg" in row:  # of many sequences, as llama-batched-bench names it
        return {f"{row['pl']} sequences": float(row["speed_tg"])}
    name = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
    return {name: statistics.median(row["samples_ts"])}


def forecasts(shape: str, cards: int, args: argparse.Namespace) -> dict[str, float]:
    """Tokens per second by test, as the model of cost has them."""
    sequences = [int(n) for n in args.sequences.split(",") if n]
    split: Any = args.split
    asked = Question(cards=(cards,), split=split, sequences=(1, *sequences), n_prompt=args.p)
    found: dict[str, float] = {}
    for row in forecast(random_model(shape), find_machine(args.machine), asked)[0]:
        several = f"{row.sequences} sequences"
        found[several if row.test == "tg" else row.test] = row.speed
    if "1 sequences" in found:
        found[f"tg{args.n}"] = found["1 sequences"]
    return found


def compare(shape: str, names: list[str], args: argparse.Namespace) -> None:
    fewer: dict[str, list[float]] = {}
    together: dict[str, list[float]] = {}
    expected = forecasts(shape, len(names), args)
    for turn in range(args.rounds):
        order = [(names[: args.base], fewer), (names, together)]
        for devices, into in order if turn % 2 == 0 else order[::-1]:
            if len(devices) == len(names) or args.alone:
                for test, speed in speeds(shape, devices, args).items():
                    into.setdefault(test, []).append(speed)
    for test, found in together.items():
        many, few = statistics.median(found), statistics.median(fewer.get(test, [0.0]))
        ratio = f"{many / few:.2f}" if few else "-"
        foreseen = expected.get(test)
        off = "" if foreseen is None else f"{foreseen:10.1f} {foreseen / many - 1:+.0%}"
        print(f"{shape:22} {test:14} {few:10.1f} {many:10.1f} {ratio:>6} {off}", flush=True)
        row = {"shape": shape, "test": test, "cards": len(names), "base": args.base, "fewer": few,
               "all": many, "forecast": foreseen}  # fmt: skip
        print(json.dumps(row), flush=True)


# -- exchanges -------------------------------------------------------------------------------------


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
    rules = [(rf"@{k}$", d.name) for k, d in enumerate(devices)]
    plan = compile_graph(g, PlanOptions(PlacementRules(devices, rules), fuse=False))
    arenas = {d.space: d.alloc(max(plan.arenas[d.space].nbytes, 1)) for d in devices}
    return bind(plan, {d.name: d for d in devices}, {}, set(), {}, arenas)


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


# -- results and steps -----------------------------------------------------------------------------


def load(shape: str, names: list[str], split: str) -> Model:
    mode: Any = split if len(names) > 1 else "none"
    backends = ("cpu", "numpy") if names[0].startswith("cuda") else ("numpy",)
    options = Options(devices=tuple(names), split_mode=mode, n_ctx=1024, backends=backends)
    model = Model(random_model(shape), options)
    model.load_weights()
    return model


def equal(shape: str, names: list[str], split: str) -> None:
    """How far logits on all cards are from one card's, and whether runs differ."""
    ids = [int(i) for i in np.random.default_rng(1).integers(3, 30000, 200)]
    found = []
    for devices in (names[:1], names, names):
        model = load(shape, devices, split)
        session = model.new_session()
        prompt = session.logits(ids).copy()
        steps = [session.step((i,), "last")[0].copy() for i in ids[:8]]
        found.append(np.concatenate([prompt.ravel(), *(s.ravel() for s in steps)]))
        model.close()
    one, first, second = found
    nmse = float(((first - one) ** 2).sum() / (one**2).sum())
    same = bool(np.array_equal(first, second))
    row = {"shape": shape, "cards": len(names), "nmse": nmse, "same_bits": same}
    print(json.dumps(row))


def step(shape: str, names: list[str], split: str) -> None:
    """Microseconds of the ops of a decode step, by card."""
    profile = Profile()
    session = load(shape, names, split).new_session(profile)
    session.step(tuple(range(5, 69)), "last")
    for i in range(6):
        session.step((10 + i,), "last")
    us: dict[str, Counter[str]] = {}
    for i in range(3, len(profile.steps)):
        for r in profile.rows([i]):
            if r.op != "host":
                us.setdefault(r.backend, Counter())[r.op] += r.us / (len(profile.steps) - 3)
    for name, ops in us.items():
        print(f"{name}: {sum(ops.values()):.0f} us")
        for op, taken in ops.most_common(12):
            print(f"  {op:24} {taken:9.1f}")
    print(json.dumps({"shape": shape, "us": us}))


def main() -> None:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("cards", type=int)
    p.add_argument("--kind", default="cuda", help="of devices (default cuda)")
    p.add_argument("--shapes", default="")
    p.add_argument("-sm", dest="split", default="tensor", choices=("layer", "tensor"))
    p.add_argument("-p", type=int, default=512)
    p.add_argument("-n", type=int, default=128)
    p.add_argument("-r", type=int, default=5)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--sequences", default="")
    p.add_argument("--alone", type=int, default=1)
    p.add_argument("--exchanges", action="store_true")
    p.add_argument("--constants", metavar="FILE")
    p.add_argument("--equal", metavar="SHAPE")
    p.add_argument("--step", metavar="SHAPE")
    p.add_argument("--all", action="store_true")
    p.add_argument("--base", type=int, default=1, metavar="N")
    p.add_argument("--machine", default=H200.name, metavar="NAME|FILE")
    args = p.parse_args()
    if args.constants and (not args.exchanges or args.cards != 2):
        p.error("--constants: of the --exchanges between 2 cards")
    names = [f"{args.kind}:{k}" for k in range(args.cards)]
    if args.all:
        args.exchanges, args.sequences = True, args.sequences or SEQUENCES
        args.equal = args.step = CURVES[0].partition(",")[0]
        args.shapes = ",".join(CURVES)
    if args.exchanges:
        exchanges(names, args.constants)
    if args.equal:
        equal(args.equal, names, args.split)
    if args.step:
        step(args.step, names, args.split)
    for shape in filter(None, args.shapes.split(",")):
        compare(shape, names, args)


if __name__ == "__main__":
    main()
