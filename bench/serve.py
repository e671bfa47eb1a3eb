"""What the server costs beside the engine by itself: the same requests, with and without HTTP.

So many clients ask for completions in a closed loop. The requests are the same everywhere, drawn
from a seed: the tokens of their prompts, and answers of different lengths, so that they end one by
one and the next ones come one by one. They are asked

- of the engine itself, where a request takes its predecessor's place before the next step;
- of its front for asyncio, where it comes a moment later, as from a client;
- of the server, by clients in another process, with the engine in a process of its own or in the
  server's (--engine-process on, off).

Printed are tokens a second of all three, the server's share of the engine's and of the front's, its
times to the first token and between tokens, and how much of the time the engine stepped. With
--steps also what the last steps were: of runs with prompts and without, how many, of how many rows
and tokens, what they took, and what passed between two of them; with --cold S what the first
clients wait for, who all come S seconds after a server is ready.

The model has a named shape with random weights and a file's tokenizer. With --paced the
device is none (`paced.py`), and the model the bundled one: its runs take the time they are said to.

    python bench/serve.py --random llama3-8b:Q4_0 -ngl all --clients 1,16,64,128 -npp 128 -ntg 128
    python bench/serve.py --paced 1.9,0.0526,0.0256,3.6 --clients 128 -npp 128 -ntg 128
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

from paced import TEXTS, Pace, paced_device

import gguflow
from gguflow.cli.bench_http import Endpoint
from gguflow.cli.bench_serve import WORDS, closed_loop, completion, summary
from gguflow.cli.load import bundled_model
from gguflow.cli.options import gpu_layers
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.load import open_model
from gguflow.engine.load.random import random_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.sampling import GREEDY
from gguflow.engine.serving.aio import AsyncEngine
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.server.cluster.serve import OwnProcess, here
from gguflow.server.config import SWITCH, ModelSpec, ServerConfig
from gguflow.server.manager import ModelManager
from gguflow.server.monitor import Step, WatchedEngine
from gguflow.server.run import listen, make_server
from gguflow.server.service import Service


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


# -- the requests ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    """A text to continue, the tokens that it is, and how many are to follow."""

    text: str
    ids: list[int]
    n_gen: int


def draw(tokenizer: Any, n: int, n_prompt: int, n_gen: int, spread: bool, seed: int) -> list[Ask]:
    """n of them. spread: lengths between half and one and a half times the mean; else the mean."""
    rng = random.Random(seed)

    def length(mean: int) -> int:
        return rng.randint(max(1, mean // 2), mean + mean // 2) if spread else mean

    asks = []
    for _ in range(n):
        wanted, words = length(n_prompt), list[str]()
        while len(ids := tokenizer.encode(" ".join(words))) < wanted:
            words += rng.choices(WORDS, k=max(1, (wanted - len(ids)) // 2))
        asks.append(Ask(" ".join(words), ids, length(n_gen)))
    return asks


# -- without the server ----------------------------------------------------------------------------


class Timed:
    """Tokens a second from here on, and the share of the time that a paced device was at work."""

    def __init__(self, model: Model) -> None:
        self._clock = getattr(next(iter(model.backends.values())), "clock", None)
        self._began, self._busy = time.perf_counter(), self._at_work()

    def _at_work(self) -> float:
        return getattr(self._clock, "busy", math.nan)

    def of(self, n: int) -> tuple[float, float]:
        """Of n tokens that were made."""
        took = time.perf_counter() - self._began
        return n / took, (self._at_work() - self._busy) / took


def engine_alone(
    model: Model, n: int, warm: Sequence[Ask], asks: Sequence[Ask], watched: bool = False
) -> tuple[float, float]:
    """The engine in a loop of n clients. watched: its steps are printed."""
    engine = WatchedEngine(model) if watched else Engine(model)

    def loop(asks: Sequence[Ask]) -> tuple[float, float]:
        left, timed, n_made = iter(asks), Timed(model), 0

        def add() -> None:
            if (ask := next(left, None)) is not None:
                engine.add(Request(ask.ids, ask.n_gen, GREEDY))

        for _ in range(n):
            add()
        while engine.has_work:
            tokens = engine.step()
            n_made += len(tokens)
            for token in tokens:
                if token.finish is not None:
                    add()
        return timed.of(n_made)

    loop(warm)  # plans are made, graphs captured
    found = loop(asks)
    if isinstance(engine, WatchedEngine):
        print_steps([*engine.steps])
    return found


def print_steps(steps: Sequence[Step]) -> None:
    """What runs with prompts and without were, and what passed between them."""
    gaps = [1e3 * (b.at - a.at) - a.ms for a, b in pairwise(steps)]
    for name, with_prompts in ("with prompts", True), ("of single rows", False):
        mine = [
            (s, gap)
            for s, gap in zip(steps, gaps, strict=False)
            if bool(s.n_prompt) is with_prompts
        ]
        if mine:
            ms = sorted(s.ms for s, _ in mine)
            print(
                f"  {len(mine)} runs {name}: {mean(ms):.2f} ms (median {ms[len(ms) // 2]:.2f}, "
                f"most {ms[-1]:.1f}), then {mean(gap for _, gap in mine):.2f} ms; "
                f"{mean(s.n_prompt for s, _ in mine):.0f} rows of prompts, "
                f"{mean(s.n_generated for s, _ in mine):.1f} tokens",
                flush=True,
            )


def front_alone(
    model: Model, n: int, warm: Sequence[Ask], asks: Sequence[Ask]
) -> tuple[float, float]:
    """The same of n coroutines."""

    async def loop(engine: AsyncEngine, asks: Sequence[Ask]) -> tuple[float, float]:
        left, timed = iter(asks), Timed(model)

        async def client() -> int:
            n_made = 0
            for ask in left:
                async for tokens in engine.batches(Request(ask.ids, ask.n_gen, GREEDY)):
                    n_made += len(tokens)
            return n_made

        return timed.of(sum(await asyncio.gather(*(client() for _ in range(n)))))

    async def run() -> tuple[float, float]:
        async with AsyncEngine(Engine(model)) as engine:
            await loop(engine, warm)
            return await loop(engine, asks)

    return asyncio.run(run())


# -- the model -------------------------------------------------------------------------------------


def with_texts(path: str, n_vocab: int) -> gguflow.Tokenizer:
    """A file's tokenizer for a vocabulary of another size: every token has the text of one of some
    words. A stream whose tokens have no text sends nothing, and costs nothing."""
    tokenizer = gguflow.Tokenizer.load(path)
    piece, n_words = tokenizer.piece, TEXTS[1] - TEXTS[0]
    tokenizer.n_vocab = tokenizer.n_rows = n_vocab
    tokenizer.piece = lambda token: piece(TEXTS[0] + token % n_words)  # type: ignore[method-assign]
    tokenizer.is_special = lambda token: False  # type: ignore[method-assign]
    return tokenizer


@dataclass(frozen=True)
class Opened:
    """How the model is opened, in this process and in the engine's."""

    shape: str
    paced: str
    vocab: str

    def model(self, options: Options) -> Model:
        """Without its weights."""
        if self.paced:
            options = replace(options, backends=("paced",), n_gpu_layers=0)
            return Model(open_model(self.vocab), options, paced_device(Pace.parse(self.paced)))
        model = Model(random_model(self.shape), options)
        model.__dict__["tokenizer"] = with_texts(self.vocab, model.hp.n_vocab)
        return model

    def spec(self, spec: ModelSpec) -> Model:
        return self.model(spec.options)

    def here(self, spec: ModelSpec) -> Model:
        return self.model(here(spec.options))


def nothing(model: Model) -> None:
    """Nothing is to be done once a model is loaded."""


# -- the server ------------------------------------------------------------------------------------


class Served:
    """The server in a thread. model: in memory, served by the engine that is in this process."""

    def __init__(self, model: Model, opened: Opened, own_process: bool) -> None:
        spec = ModelSpec("random", Path(opened.vocab), model.options)
        config = ServerConfig(port=0, access_log=False, timeout=3600.0, n_queue=4096)
        if own_process:
            cluster = OwnProcess(opened.spec, nothing)
            manager = ModelManager([spec], config, opened.here, cluster=cluster)
        else:
            model.__dict__["load_weights"] = lambda progress=None: None
            manager = ModelManager([spec], config, lambda _: model)
        self.service = Service(manager, config)
        self.sock = listen(config)
        ready = threading.Event()
        self.server = make_server(self.service, ready.set)
        self.thread = threading.Thread(target=self.server.run, args=([self.sock],), daemon=True)
        self.thread.start()
        assert ready.wait(600)
        self.asking = ProcessPoolExecutor(1, get_context("spawn"))
        self.url = f"http://127.0.0.1:{self.sock.getsockname()[1]}"

    def load(self, n: int, asks: Sequence[Ask]) -> dict[str, Any]:
        """What n clients in another process notice, the share of the time that the engine stepped,
        and microseconds of the event loop's a token."""
        (loaded,) = self.service.manager.loaded()
        if hasattr(loaded.watched, "steps"):
            loaded.watched.steps.clear()
        assert self.thread.ident is not None
        clock = time.pthread_getcpuclockid(self.thread.ident)
        bodies = [completion("random", ask.text, ask.n_gen) for ask in asks]
        before = time.clock_gettime(clock)
        row = self.asking.submit(clients, self.url, n, bodies).result()
        assert row["n_prompt"] == sum(len(ask.ids) for ask in asks), "other prompts"
        row["loop"] = 1e6 * (time.clock_gettime(clock) - before) / sum(a.n_gen for a in asks)
        steps = [*loaded.watched.steps]
        wall = steps[-1].at - steps[0].at + steps[-1].ms / 1e3
        row["stepping"] = sum(s.ms for s in steps) / 1e3 / wall
        row["steps"] = steps
        return row

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(60)
        self.asking.shutdown()
        self.sock.close()


def clients(url: str, n: int, bodies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """n clients for these bodies; the row of what came."""

    async def run() -> dict[str, Any]:
        endpoint = Endpoint(url)
        began = time.perf_counter()
        outcomes = await closed_loop(endpoint, bodies, n)
        row = summary(outcomes, time.perf_counter() - began)
        assert row["requests"] == len(bodies), row["errors"]
        return row | {"n_prompt": sum(o.n_prompt for o in outcomes)}

    return asyncio.run(run())


# -- the table -------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--random", default="tinyllama-1.1b:Q4_0", help="shape and type")
    p.add_argument(
        "--paced",
        default="",
        metavar="BASE,SINGLE,CHUNK,MIXED,MAKING",
        help="ms of a run, a row, a prompt's row, of having any, of a new plan",
    )
    p.add_argument("--vocab", metavar="FILE", help="whose tokenizer (default: the bundled model's)")
    p.add_argument("-ngl", type=gpu_layers, default=0)
    p.add_argument("-t", type=int, default=0, help="threads")
    p.add_argument("--clients", type=numbers, default=[1, 8])
    p.add_argument("--engine-process", default="on,off")
    p.add_argument("--rounds", type=int, default=4, help="requests of each client")
    p.add_argument("--steps", action="store_true", help="what the last steps were, too")
    p.add_argument("--cold", type=float, metavar="S", help="first tokens S seconds after the start")
    p.add_argument("--fixed", action="store_true", help="all lengths are the mean")
    p.add_argument("-npp", type=int, default=128)
    p.add_argument("-ntg", type=int, default=64)
    args = p.parse_args(argv)
    most = max(args.clients)
    n_ctx = -(-(2 * args.npp + 3 * args.ntg // 2 + 32) // 64) * 64
    options = Options(n_ctx=n_ctx, n_seqs=most, n_threads=args.t, n_gpu_layers=args.ngl)
    opened = Opened(args.random, args.paced, args.vocab or str(bundled_model()))
    model = opened.model(options)
    model.load_weights()
    sys.setswitchinterval(SWITCH)
    seeds = iter(range(1_000_000))  # no prompt comes twice: the cache would know it

    def asks(n: int, rounds: int) -> list[Ask]:
        return draw(model.tokenizer, rounds * n, args.npp, args.ntg, not args.fixed, next(seeds))

    ways: dict[str, Callable[..., tuple[float, float]]] = {
        "the engine alone": partial(engine_alone, watched=args.steps),
        "its front": front_alone,
    }
    # fmt: skip
    speeds: dict[int, list[float]] = {n: [] for n in args.clients}
    measured = {n: asks(n, args.rounds) for n in args.clients}
    what = f"runs of {args.paced} ms" if args.paced else args.random
    print(f"{what}, about {args.npp} + {args.ntg} tokens, {args.rounds} requests a client")
    for n in args.clients:
        for name, way in ways.items():
            speed, busy = way(model, n, asks(n, 2), measured[n])
            speeds[n].append(speed)
            at_work = f", the device at work {busy:.3f} of the time" if args.paced else ""
            print(f"{n} clients, {name}: {speed:.1f} tokens/s{at_work}", flush=True)
            gc.collect()
    names = ["clients", "engine process", "engine t/s", "front t/s", "server t/s", "of engine",
             "of front", "first p50", "p95 ms", "between p50", "p95 ms", "stepping",
             "event loop us/token"]  # fmt: skip
    print("| " + " | ".join(names) + " |\n|" + "--:|" * len(names))
    for own in filter(None, args.engine_process.split(",")):
        served = Served(model, opened, own == "on")
        if args.cold is not None:
            time.sleep(args.cold)
        for n in args.clients:
            first = served.load(n, asks(n, 2))  # plans of this many
            if args.cold is not None:
                times = (f"{1e3 * first[name]:.0f}" for name in ("first_p50", "first_p95"))
                print(f"{n} clients at once, {args.cold:g} s after the server was ready: first "
                      f"tokens after {' and '.join(times)} ms (p50, p95)", flush=True)  # fmt: skip
            r = served.load(n, measured[n])
            speed = r["tokens_per_s"]
            cells = [n, own, *(f"{x:.1f}" for x in (*speeds[n], speed)),
                     *(f"{speed / x:.3f}" for x in speeds[n])]  # fmt: skip
            times = "first_p50", "first_p95", "between_p50", "between_p95"
            cells += [*(f"{1e3 * r[name]:.2f}" for name in times), f"{r['stepping']:.3f}",
                      f"{r['loop']:.1f}"]  # fmt: skip
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            if args.steps:
                print_steps(r["steps"])
        served.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
