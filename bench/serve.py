"""What the server costs beside the engine by itself: the same requests, with and without HTTP.

A model of a named shape with random weights and the bundled model's tokenizer. So many clients ask
for completions in a closed loop: of the engine itself, where a request takes the place of one that
ended in the same step; of its front for asyncio, where it comes a moment later, as from a client;
and of the server, by `gguflow bench --serve` in another process, with the engine in a process of
its own or in the server's (--engine-process on, off). Printed are tokens a second of all three, the
server's share of the front's, its times to the first token and between tokens, and how much of the
time the engine stepped.

python bench/serve.py --random llama3-8b:Q4_0 -ngl all --clients 1,16,64,128 -npp 128 -ntg 128
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import gguflow
from gguflow.cli.load import bundled_model
from gguflow.cli.options import gpu_layers
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
from gguflow.server.run import listen, make_server
from gguflow.server.service import Service


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def engine_alone(model: Model, n: int, n_requests: int, n_prompt: int, n_gen: int) -> float:
    """Tokens a second of a closed loop of n sequences without a server."""
    engine = Engine(model)
    rng = np.random.default_rng(0)
    n_vocab = model.hp.n_vocab

    def add() -> None:
        engine.add(Request(rng.integers(0, n_vocab, n_prompt).tolist(), n_gen, GREEDY))

    def loop(requests: int, clients: int) -> float:
        left, began = requests - clients, time.perf_counter()
        for _ in range(clients):
            add()
        while engine.has_work:
            for token in engine.step():
                if token.finish is not None and left > 0:
                    left -= 1
                    add()
        return requests * n_gen / (time.perf_counter() - began)

    loop(2 * n, n)  # plans are made, graphs captured
    return loop(n_requests, n)


def front_alone(model: Model, n: int, n_requests: int, n_prompt: int, n_gen: int) -> float:
    """The same of n coroutines, each of which asks again when it has its answer."""
    rng = np.random.default_rng(0)

    async def loop(engine: AsyncEngine, requests: int) -> float:
        left, began = requests, time.perf_counter()

        async def client() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                ids = rng.integers(0, model.hp.n_vocab, n_prompt).tolist()
                async for _ in engine.batches(Request(ids, n_gen, GREEDY)):
                    pass

        await asyncio.gather(*(client() for _ in range(n)))
        return requests * n_gen / (time.perf_counter() - began)

    async def run() -> float:
        async with AsyncEngine(Engine(model)) as engine:
            await loop(engine, 2 * n)
            return await loop(engine, n_requests)

    return asyncio.run(run())


def open_model(shape: str, options: Options) -> Model:
    """A model of random weights, without them, with the bundled model's tokenizer: every token gets
    the text of one that the bundled model has."""
    tokenizer = gguflow.Tokenizer.load(bundled_model())
    model = Model(random_model(shape), options)
    tokenizer.n_rows = model.hp.n_vocab
    piece, n_texts = tokenizer._shown_piece, tokenizer.n_vocab
    tokenizer._shown_piece = lambda token: piece(token % n_texts)  # type: ignore[method-assign]
    model.__dict__["tokenizer"] = tokenizer
    return model


def open_spec(shape: str, spec: ModelSpec) -> Model:
    return open_model(shape, spec.options)


def open_here(shape: str, spec: ModelSpec) -> Model:
    return open_model(shape, here(spec.options))


def nothing(model: Model) -> None:
    """Nothing is to be done once a model is loaded."""


class Served:
    """The server in a thread. model: in memory, served by the engine that is in this process."""

    def __init__(self, model: Model, shape: str, own_process: bool) -> None:
        spec = ModelSpec("random", bundled_model(), model.options)
        config = ServerConfig(port=0, access_log=False, timeout=3600.0, n_queue=4096)
        opened = partial(open_spec, shape)
        if own_process:
            cluster = OwnProcess(opened, nothing)
            manager = ModelManager([spec], config, partial(open_here, shape), cluster=cluster)
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
        self.url = f"http://127.0.0.1:{self.sock.getsockname()[1]}"

    def load(self, n: int, n_requests: int, n_prompt: int, n_gen: int) -> dict[str, Any]:
        """One closed loop's row, and the share of it that the engine stepped."""
        (loaded,) = self.service.manager.loaded()
        if hasattr(loaded.watched, "steps"):
            loaded.watched.steps.clear()
        done = subprocess.run(
            [sys.executable, "-m", "gguflow", "bench", "--serve", self.url, "--clients", str(n),
             "--n-requests", str(n_requests), "-npp", str(n_prompt), "-ntg", str(n_gen),
             "-o", "jsonl"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        row: dict[str, Any] = json.loads(done.stdout)
        steps = [*loaded.watched.steps]
        wall = steps[-1].at - steps[0].at + steps[-1].ms / 1e3
        row["stepping"] = sum(s.ms for s in steps) / 1e3 / wall
        return row

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(60)
        self.sock.close()


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--random", default="tinyllama-1.1b:Q4_0", help="shape and type")
    p.add_argument("-ngl", type=gpu_layers, default=0)
    p.add_argument("-t", type=int, default=0, help="threads")
    p.add_argument("--clients", type=numbers, default=[1, 8])
    p.add_argument("--engine-process", default="on,off")
    p.add_argument("--rounds", type=int, default=3, help="requests of each client")
    p.add_argument("-npp", type=int, default=128)
    p.add_argument("-ntg", type=int, default=64)
    args = p.parse_args(argv)
    most = max(args.clients)
    # A word of the generator's may be two tokens: prompts are a little longer than asked for.
    n_ctx = -(-(args.npp + args.npp // 2 + args.ntg + 32) // 64) * 64
    options = Options(n_ctx=n_ctx, n_seqs=most, n_threads=args.t, n_gpu_layers=args.ngl)
    model = open_model(args.random, options)
    model.load_weights()
    sys.setswitchinterval(SWITCH)
    alone, front = {}, {}
    for n in args.clients:
        alone[n] = engine_alone(model, n, args.rounds * n, args.npp, args.ntg)
        gc.collect()
        front[n] = front_alone(model, n, args.rounds * n, args.npp, args.ntg)
        gc.collect()
    print(f"{args.random}, {args.npp} + {args.ntg} tokens, {Path(sys.executable).name}")
    print("| clients | engine process | engine t/s | front t/s | server t/s | share | first p50 "
          "| p95 ms | between p50 | p95 ms | stepping |")  # fmt: skip
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for own in args.engine_process.split(","):
        served = Served(model, args.random, own == "on")
        for n in args.clients:
            served.load(n, 2 * n, args.npp, args.ntg)  # plans of this many
            r = served.load(n, args.rounds * n, args.npp, args.ntg)
            share = r["tokens_per_s"] / front[n]
            names = "first_p50", "first_p95", "between_p50", "between_p95"
            cells = [n, own, f"{alone[n]:.1f}", f"{front[n]:.1f}", f"{r['tokens_per_s']:.1f}",
                     f"{share:.3f}"]  # fmt: skip
            cells += [*(f"{1e3 * r[name]:.2f}" for name in names), f"{r['stepping']:.3f}"]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        served.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
