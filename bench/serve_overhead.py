"""What the server costs beside the engine: throughput with and without it, CPU time of a token.

An engine whose runs take a given time and no CPU (as a device's do) generates for so many streaming
clients, first by itself and then behind HTTP. All of the engine's own bookkeeping is there. Clients
are a process of their own. CPU times are those of the server's two threads.

    python bench/serve_overhead.py --clients 128 --step-ms 8 -n 128
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from gguflow.cli.bench_http import Endpoint
from gguflow.cli.load import bundled_model
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.serving import aio
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.server.config import SWITCH, ModelSpec, ServerConfig
from gguflow.server.manager import ModelManager
from gguflow.server.run import listen, make_server
from gguflow.server.service import Service

PROMPT = "Once upon a time there was a king who had three sons, and"


class Drawn:
    """Outputs of a run that was none: zeros for logits, tokens drawn from some that are text."""

    def __init__(self, n: int, rng: np.random.Generator) -> None:
        self._parts = (np.zeros((n, 1), np.float32), rng.integers(300, 3000, n, np.int32))

    def __getitem__(self, i: int) -> np.ndarray:
        return self._parts[i]


def without_runs(engine: Engine, seconds: float) -> None:
    """Runs take so long and compute nothing."""
    rng = np.random.default_rng(0)
    runner: Any = engine._runner

    def run(rows: Any, sampling: Any, every: bool = False) -> Drawn:
        time.sleep(seconds)
        return Drawn(len(rows.out), rng)

    runner.run = run


def body(n: int, i: int) -> dict[str, Any]:
    """A request of so many tokens."""
    return {"prompt": f"{PROMPT} {i}", "max_tokens": n, "ignore_eos": True, "stream": True}


def alone(args: argparse.Namespace, options: Options) -> float:
    """Tokens a second of the engine by itself."""
    model = Model.load(bundled_model(), **options.__dict__)
    engine = Engine(model)
    without_runs(engine, args.step_ms / 1e3)
    for round in range(2):
        for i in range(args.clients):
            ids = model.tokenizer.encode(f"{PROMPT} {i} {round}")
            engine.add(Request(ids, max_tokens=args.n))
        began, n = time.perf_counter(), 0
        while engine.has_work:
            n += len(engine.step())
    return n / (time.perf_counter() - began)


def clients(url: str, args: argparse.Namespace) -> None:
    """Clients that ask `rounds` times each; prints when they begin and end."""

    async def one(endpoint: Endpoint, i: int) -> int:
        n = 0
        for round in range(args.rounds):
            got = await endpoint.complete(body(args.n, i + 1000 * round))
            assert got.ok, got
            n += got.n_generated
        return n

    async def run() -> None:
        endpoint = Endpoint(url)
        await endpoint.complete(body(2, 0))
        print("begin", flush=True)
        found = await asyncio.gather(*(one(endpoint, i) for i in range(args.clients)))
        print("end", sum(found), flush=True)

    asyncio.run(run())


def served(args: argparse.Namespace, options: Options) -> tuple[float, float, float]:
    """Tokens a second behind HTTP; microseconds of CPU a token of the event loop and the engine."""
    config = ServerConfig(port=0, access_log=False)
    spec = ModelSpec("m", Path(bundled_model()), options)
    service = Service(
        ModelManager([spec], config, lambda s: Model(open_model(s.path), s.options)), config
    )
    sock: socket.socket = listen(config)
    ready = threading.Event()
    server = make_server(service, ready.set)
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    sys.setswitchinterval(SWITCH)
    thread.start()
    ready.wait()
    loaded = next(iter(service.manager.loaded()))
    without_runs(loaded.watched, args.step_ms / 1e3)
    steps = loaded.engine._thread
    assert thread.ident is not None and steps is not None and steps.ident is not None
    clocks = [time.pthread_getcpuclockid(t) for t in (thread.ident, steps.ident)]
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    command = [sys.executable, __file__, "--url", url, *sys.argv[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None and asking.stdout.readline().startswith("begin")
        before, began = [time.clock_gettime(c) for c in clocks], time.perf_counter()
        n = int(asking.stdout.readline().split()[1])
        took = time.perf_counter() - began
        cpu = [time.clock_gettime(c) - b for c, b in zip(clocks, before, strict=True)]
    server.should_exit = True
    thread.join()
    return n / took, 1e6 * cpu[0] / n, 1e6 * cpu[1] / n


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--clients", type=int, default=128)
    p.add_argument("--step-ms", type=float, default=8.0, help="of each run of the engine")
    p.add_argument("-n", type=int, default=128, help="tokens of an answer")
    p.add_argument("--rounds", type=int, default=3, help="answers of each client")
    p.add_argument("--each", action="store_true", help="tell readers of every token by itself")
    p.add_argument("--url", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.url:
        clients(args.url, args)
        return
    if args.each:
        aio.HOLD_FROM = args.clients + 1
    options = Options(n_ctx=512, n_seqs=args.clients, n_cache=512 * args.clients, n_threads=1)
    by_itself = alone(args, options)
    behind, loop, steps = served(args, options)
    print(
        "| clients | engine t/s | behind HTTP t/s | share | event loop us/token | engine us/token |"
    )
    print(
        "|--------:|-----------:|----------------:|------:|--------------------:|----------------:|"
    )
    print(f"| {args.clients} | {by_itself:.0f} | {behind:.0f} | {behind / by_itself:.3f} | "
          f"{loop:.1f} | {steps:.1f} |")  # fmt: skip


if __name__ == "__main__":
    main()
