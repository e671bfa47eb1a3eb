"""One model, loaded once, and all that is measured of it on some cards; run by cards.py.

    python bench/card_model.py llama3-8b:Q4_0 --devices cuda:0,cuda:1 [-p 512] [-n 128] [-r 3]
        [--sequences 1,16,64,128] [--logits FILE] [--steps 1,128]

Prints JSON lines as it goes: seconds of loading; tokens per second of a prompt, of generated tokens
(by llama-bench's rules) and of many sequences (by llama-batched-bench's, prompts of 128 and -ntg
tokens); with --steps microseconds by op and card, of a prompt and of a decode step of so many
sequences. --logits writes those of a prompt and some steps, made twice, and says whether both have
the same bits.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from gguflow.cli.bench_grid import SequencesTest
from gguflow.cli.bench_model import cache_rows
from gguflow.cli.bench_sequences import run_once
from gguflow.engine.load.random import random_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.profile import Profile
from gguflow.engine.sampling import GREEDY
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request

PROMPT, STEPS = 600, 8  # tokens whose logits are compared
SEQ_PROMPT = 128  # tokens before those that many sequences generate
WARMUP = 8


def say(**row: Any) -> None:
    print(json.dumps(row), flush=True)


def load(shape: str, args: argparse.Namespace) -> Model:
    names = args.devices.split(",")
    of_one = max(args.p + args.n, PROMPT + STEPS)
    of_each = SEQ_PROMPT + args.ntg
    most = max(args.sequences + args.steps, default=1)
    options = Options(
        devices=tuple(names), split_mode=args.split if len(names) > 1 else "none",
        n_ctx=max(of_one, of_each), n_seqs=most, n_threads=args.threads,
        n_cache=max(cache_rows(of_one, 1), cache_rows(of_each, most)),
        backends=("cpu", "numpy") if names[0].startswith("cuda") else ("numpy",),
    )  # fmt: skip
    model = Model(random_model(shape), options)
    model.load_weights()
    return model


# -- speeds ----------------------------------------------------------------------------------------


def timed(run: Callable[[], None], repetitions: int) -> float:
    """Median seconds, after two runs: on a card the first launches op by op, the second captures a
    graph."""
    taken = []
    for i in range(repetitions + 2):
        began = time.perf_counter()
        run()
        if i > 1:
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def speeds_of_one(model: Model, args: argparse.Namespace) -> None:
    """Of one sequence: a prompt, and tokens after none."""
    session = model.with_options(n_ctx=args.p + args.n, n_seqs=1, n_cache=0).new_session()
    ids = [int(i) for i in np.random.default_rng(0).integers(3, model.hp.n_vocab, args.p + args.n)]

    def prompt() -> None:
        session.rewind(0)
        session.prefill(ids[: args.p], None, "last")

    def generation() -> None:
        session.rewind(0)
        for token in ids[args.p :]:
            session.step((token,), "last")

    if args.p:
        say(test=f"pp{args.p}", speed=args.p / timed(prompt, args.r))
    if args.n:
        session.rewind(0)
        for token in ids[:WARMUP]:
            session.step((token,), "last")
        taken = []
        for _ in range(args.r):
            began = time.perf_counter()
            generation()
            taken.append(time.perf_counter() - began)
        say(test=f"tg{args.n}", speed=args.n / statistics.median(taken))


def speed_of_many(model: Model, n: int, args: argparse.Namespace) -> None:
    """Of the tokens after n prompts."""
    test = SequencesTest(SEQ_PROMPT, args.ntg, n, 2048, 512, args.threads, "f16", "f16")
    rows = cache_rows(test.n_ctx, n)
    engine = Engine(
        model.with_options(n_ctx=test.n_ctx, n_seqs=n, n_cache=rows), prompts_first=True
    )
    few = SequencesTest(SEQ_PROMPT, WARMUP, n, 2048, 512, args.threads, "f16", "f16")
    # The first run of a plan launches op by op, the second captures a graph; of many prompts one
    # warmup has several runs.
    for seed in range(1 if n * SEQ_PROMPT >= 2 * test.n_ubatch else 2):
        run_once(engine, few, seed)
    prompts, tokens = run_once(engine, test, 2)
    say(test=f"{n} sequences", speed=n * args.ntg / tokens, prompts=n * SEQ_PROMPT / prompts)


# -- results and steps -----------------------------------------------------------------------------


def logits(model: Model, path: str) -> None:
    ids = [int(i) for i in np.random.default_rng(1).integers(3, model.hp.n_vocab, PROMPT)]
    found = []
    for _ in range(2):
        session = model.with_options(n_ctx=PROMPT + STEPS, n_seqs=1, n_cache=0).new_session()
        prompt = session.prefill(ids, None, "last")[0].copy()
        steps = [session.step((i,), "last")[0].copy() for i in ids[:STEPS]]
        found.append(np.concatenate([prompt.ravel(), *(s.ravel() for s in steps)]))
    np.save(path, found[0])
    say(same_bits=bool(np.array_equal(*found)), finite=bool(np.isfinite(found[0]).all()))


def steps(model: Model, sequences: list[int]) -> None:
    """A prompt of 512 and decode steps, by op and card."""
    for n in sequences:
        profile = Profile()
        if n == 1:
            session = model.with_options(n_ctx=1024, n_seqs=1, n_cache=0).new_session(profile)
            for _ in range(2):  # the first has kernels to load
                session.rewind(0)
                session.step(tuple(5 + i % 30000 for i in range(512)), "last")
            for i in range(6):
                session.step((10 + i,), "last")
            say(step="prompt", us=by_op(profile, [1]))
            say(step="decode", us=by_op(profile, [5, 6, 7]))
            continue
        rows = cache_rows(SEQ_PROMPT + WARMUP, n)
        chosen = model.with_options(n_ctx=SEQ_PROMPT + WARMUP, n_seqs=n, n_cache=rows)
        engine = Engine(chosen, profile=profile, prompts_first=True)
        rng = np.random.default_rng(2)
        for _ in range(n):
            ids = [int(i) for i in rng.integers(3, model.hp.n_vocab, SEQ_PROMPT)]
            engine.add(Request(ids, WARMUP, GREEDY))
        while engine.has_work:
            engine.step()
        last = [i for i, s in enumerate(profile.steps) if s.n_tokens == n][-3:]
        say(step=f"decode of {n}", us=by_op(profile, last))
        del engine
        gc.collect()


def by_op(profile: Profile, which: list[int]) -> dict[str, dict[str, float]]:
    """Microseconds of some steps' ops, by card; the host's by itself."""
    us: dict[str, Counter[str]] = {}
    for r in profile.rows(which):
        us.setdefault("host" if r.op == "host" else r.backend, Counter())[r.op] += r.us / len(which)
    return {name: {op: round(t, 1) for op, t in ops.most_common(14)} for name, ops in us.items()}


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def main() -> None:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("shape")
    p.add_argument("--devices", required=True)
    p.add_argument("-sm", dest="split", default="tensor", choices=("layer", "tensor"))
    p.add_argument("-p", type=int, default=512)
    p.add_argument("-n", type=int, default=128)
    p.add_argument("-ntg", type=int, default=128)
    p.add_argument("-r", type=int, default=3)
    p.add_argument("-t", dest="threads", type=int, default=8)
    p.add_argument("--sequences", type=numbers, default=[])
    p.add_argument("--logits", default="", metavar="FILE")
    p.add_argument("--steps", type=numbers, default=[])
    args = p.parse_args()
    began = time.monotonic()
    model = load(args.shape, args)
    say(loaded=round(time.monotonic() - began, 1))
    speeds_of_one(model, args)
    for n in args.sequences:
        speed_of_many(model, n, args)
        gc.collect()  # its cache, before the next one comes into memory
    if args.logits:
        logits(model, args.logits)
    if args.steps:
        steps(model, args.steps)
    say(seconds=round(time.monotonic() - began, 1))


if __name__ == "__main__":
    main()
