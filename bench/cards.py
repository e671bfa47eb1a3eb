"""One model over several cards, beside one: speeds, exchanges, results.

    python bench/cards.py 2 --shapes llama3-8b:Q4_0,llama3-8b:F16 [-p 512] [-n 128]
        [--sequences 1,16,64,128] [-sm tensor] [-r 5]
    python bench/cards.py 2 --exchanges [--constants mine.json]
    python bench/cards.py 2 --equal llama3-8b:Q4_0
    python bench/cards.py 2 --step llama3-8b:Q4_0 [--sequences 128]
    python bench/cards.py 4 --all [--base 2] [--within 540] [--pieces equal,llama3-70b:F16]

For each shape, with random weights: tokens per second on one card and on all, in turns, each in a
process of its own, and their ratio; with --alone 0 only on all, with --base 2 on two instead of
one. Beside each figure stands what `gguflow scale` forecasts for cards of --machine, and how far it
is off. --exchanges: microseconds of an all_reduce by size of the parts, in the form that is chosen
and in both, and of NCCL's where torch is there, and of a prompt's sums with their norms, from
chains of them; --constants writes those of two cards as a machine for `gguflow scale`, whose other
figures are the h200 preset's. --equal: logits of a prompt and of steps on one card and on all.
--step: the time of a prompt and of a decode step by op, of each card; with --sequences of a step of
so many, after prompts of 128.

--all: all of that for the shapes whose curves docs/scaling.md shows, at 1, 16, 64 and 128
sequences, piece by piece, each with the seconds it took. --pieces: only these, in this order.
--within: seconds after which no further piece is begun, and what is under way is ended; the names
of those that are left are printed as --pieces wants them. A model that does not fit on --base cards
says so, and is measured on all alone. All print JSON lines after what people read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from card_exchanges import exchanges, prompts

from gguflow.engine.load.random import random_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.profile import Profile
from gguflow.engine.sampling import GREEDY
from gguflow.engine.scaling import Question, find_machine, forecast
from gguflow.engine.scaling.machine import H200
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request

CURVES = ("llama3-8b:F16", "llama3-8b:Q4_0", "llama3-70b:F16", "llama3-70b:Q4_0", "llama3-70b:Q8_0")
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
        left = max(args.until - time.monotonic(), 20.0) if args.until else None
        try:
            done = subprocess.run([*base, *extra], capture_output=True, text=True, timeout=left)
        except subprocess.TimeoutExpired:
            print(f"{shape} on {','.join(devices)}: not done in {left:.0f} s", flush=True)
            continue
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            print(f"{shape} on {','.join(devices)}: {said[-1]}", flush=True)
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


# -- results and steps -----------------------------------------------------------------------------


def load(shape: str, names: list[str], split: str, n_seqs: int = 1) -> Model:
    mode: Any = split if len(names) > 1 else "none"
    backends = ("cpu", "numpy") if names[0].startswith("cuda") else ("numpy",)
    n_ctx = 1024 if n_seqs == 1 else 256
    options = Options(devices=tuple(names), split_mode=mode, n_ctx=n_ctx, n_seqs=n_seqs,
                      backends=backends)  # fmt: skip
    model = Model(random_model(shape), options)
    model.load_weights()
    return model


def equal(shape: str, names: list[str], split: str) -> None:
    """How far logits on all cards are from one card's, and whether runs differ."""
    ids = [int(i) for i in np.random.default_rng(1).integers(3, 30000, 600)]
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
    """Microseconds of the ops of a prompt of 512 and of a decode step, by card."""
    profile = Profile()
    session = load(shape, names, split).new_session(profile)
    for _ in range(2):  # the first has kernels to load
        session.rewind(0)
        session.step(tuple(5 + i % 30000 for i in range(512)), "last")
    for i in range(6):
        session.step((10 + i,), "last")
    found = {what: by_op(profile, what, steps)
             for what, steps in (("prompt", [1]), ("decode", [5, 6, 7]))}  # fmt: skip
    print(json.dumps({"shape": shape, "us": found}), flush=True)


def step_of_many(shape: str, names: list[str], split: str, n: int) -> None:
    """The same of a decode step of n sequences."""
    model, profile = load(shape, names, split, n), Profile()
    engine = Engine(model, profile=profile, prompts_first=True)
    rng = np.random.default_rng(2)
    for _ in range(n):
        ids = [int(i) for i in rng.integers(3, model.hp.n_vocab, 128)]
        engine.add(Request(ids, 8, GREEDY))
    while engine.has_work:
        engine.step()
    last = [i for i, s in enumerate(profile.steps) if s.n_tokens == n][-3:]
    found = by_op(profile, f"decode of {n}", last)
    print(json.dumps({"shape": shape, "sequences": n, "us": found}), flush=True)


def by_op(profile: Profile, what: str, steps: list[int]) -> dict[str, Counter[str]]:
    """Microseconds of some steps' ops, by card."""
    us: dict[str, Counter[str]] = {}
    for r in profile.rows(steps):
        if r.op != "host":
            us.setdefault(r.backend, Counter())[r.op] += r.us / len(steps)
    for name, ops in us.items():
        print(f"{what}, {name}: {sum(ops.values()):.0f} us")
        for op, taken in ops.most_common(12):
            print(f"  {op:24} {taken:9.1f}")
    return us


# -- pieces ----------------------------------------------------------------------------------------


def pieces(names: list[str], args: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """All there is to know, by name."""
    found: dict[str, Callable[[], None]] = {
        "exchanges": lambda: exchanges(names, args.constants),
        "prompts": lambda: prompts(names),
    }
    for shape in CURVES[:2]:
        found[f"equal-{shape}"] = lambda s=shape: equal(s, names, args.split)  # type: ignore[misc]
        found[f"step-{shape}"] = lambda s=shape: step(s, names, args.split)  # type: ignore[misc]
    for shape in CURVES:
        found[shape] = lambda s=shape: compare(s, names, args)  # type: ignore[misc]
    return found


def run_pieces(names: list[str], args: argparse.Namespace) -> None:
    every = pieces(names, args)
    wanted = [p for p in args.pieces.split(",") if p] or list(every)
    if unknown := [p for p in wanted if p not in every]:
        raise SystemExit(f"no piece {', '.join(unknown)}; there are {', '.join(every)}")
    for i, name in enumerate(wanted):
        if args.until and time.monotonic() > args.until:
            print(f"time is over; left: --pieces {','.join(wanted[i:])}", flush=True)
            return
        began = time.monotonic()
        every[name]()
        print(
            json.dumps({"piece": name, "seconds": round(time.monotonic() - began, 1)}), flush=True
        )


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
    p.add_argument("--pieces", default="", metavar="LIST")
    p.add_argument("--within", type=float, default=0.0, metavar="SECONDS")
    p.add_argument("--base", type=int, default=1, metavar="N")
    p.add_argument("--machine", default=H200.name, metavar="NAME|FILE")
    args = p.parse_args()
    args.until = time.monotonic() + args.within if args.within else 0.0
    if args.constants and args.cards != 2:
        p.error("--constants: of the exchanges between 2 cards")
    names = [f"{args.kind}:{k}" for k in range(args.cards)]
    if args.all or args.pieces:
        args.sequences = args.sequences or SEQUENCES
        return run_pieces(names, args)
    if args.exchanges:
        exchanges(names, args.constants)
        prompts(names)
    if args.equal:
        equal(args.equal, names, args.split)
    if args.step:
        step(args.step, names, args.split)
        for n in filter(None, args.sequences.split(",")):
            step_of_many(args.step, names, args.split, int(n))
    for shape in filter(None, args.shapes.split(",")):
        compare(shape, names, args)
    return None


if __name__ == "__main__":
    main()
