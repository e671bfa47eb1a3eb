"""What a token costs besides its graph: sampling, and the host between two tokens.

    python bench/cuda_tokens.py [--shapes llama3.2-1b:Q4_0,llama3-8b:Q4_0] [-n 256] [--sample]

For each shape, microseconds a token: of generation that runs ahead of the host, greedy and with the
default sampler; of generation step by step; of the steps `gguflow bench` counts, which the host
waits for and which do not sample; of the graphs of all three alone, replayed back to back; and what
the host does between two of bench's steps. --sample adds the sampling kernels by themselves, over
128,256 logits, in a graph of their own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda_decode import quick_weights, replay_us

from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import F32, I32, I64, Graph
from gguflow.engine.model import Model
from gguflow.engine.runtime import BoundPlan
from gguflow.engine.sampling import SamplerSettings, SamplerState
from gguflow.engine.session import Session
from gguflow.kernels.cuda import launch

WARMUP = 16
N_VOCAB = 128_256
SAMPLERS = {
    "greedy": SamplerSettings(temperature=0.0),
    "greedy, penalty": SamplerSettings(temperature=0.0, repeat_penalty=1.1),
    "default (40, 0.95, 0.05)": SamplerSettings(),
    "top_k 64 alone": SamplerSettings(top_k=64, top_p=1.0, min_p=0.0),
    "top_k 1000": SamplerSettings(top_k=1000),
    "all, top_p 0.95": SamplerSettings(top_k=0),
    "all, flat": SamplerSettings(temperature=100.0, top_k=0, top_p=1.0, min_p=0.0),
}


def generation_us(session: Session, n: int, settings: SamplerSettings) -> float:
    """Wall microseconds a token of a generation that is under way."""
    session.rewind(0)
    tokens = session.generate([1, 2, 3, 4], n + WARMUP, settings)
    for _ in range(WARMUP):
        next(tokens)
    begin = time.perf_counter()
    got = sum(1 for _ in tokens)
    return (time.perf_counter() - begin) * 1e6 / got


def stepwise_us(session: Session, n: int, settings: SamplerSettings) -> float:
    """The same in a new session, every token read before the next step."""
    ahead, BoundPlan.token_loop = BoundPlan.token_loop, None  # type: ignore[method-assign,assignment]
    try:
        return generation_us(session, n, settings)
    finally:
        BoundPlan.token_loop = ahead  # type: ignore[method-assign]


def bench_us(session: Session, n: int) -> tuple[float, float]:
    """Wall microseconds of the steps that `gguflow bench` counts, and of them outside the run."""
    session.rewind(0)
    for t in range(WARMUP):
        session.step((t,), "last")
    bound = session.bound_plan(1, "last", False)
    run, inside = bound.run, 0.0

    def timed() -> None:
        nonlocal inside
        begin = time.perf_counter()
        run()
        inside += time.perf_counter() - begin

    begin = time.perf_counter()
    for t in range(n):
        session.step((t,), "last")
    each = (time.perf_counter() - begin) * 1e6 / n
    bound.run = timed  # type: ignore[method-assign]
    begin = time.perf_counter()
    session.rewind(WARMUP)
    for t in range(n):
        session.step((t,), "last")
    outside = time.perf_counter() - begin - inside
    del bound.run
    return each, outside * 1e6 / n


def tokens(shape: str, n: int) -> None:
    """Print the lines of one shape."""
    model = Model.random(shape, backends=("cuda", "numpy"), n_ctx=n + 128)
    session = model.new_session()
    device = model.backends["cuda:0"].device  # type: ignore[attr-defined]
    print(f"{shape}, us a token (tokens/s)", flush=True)

    def say(what: str, us: float) -> None:
        print(f"    {what:44} {us:8.1f} ({1e6 / us:.1f})", flush=True)

    for name in ("greedy", "default (40, 0.95, 0.05)"):
        say(f"ahead, {name}", generation_us(session, n, SAMPLERS[name]))
        loop: Any = session.bound_plan(1, "last", True).token_loop
        say(f"  its graph, {name}", replay_us(device, loop._graph))
    session = model.new_session()
    say("step by step, greedy", stepwise_us(session, n, SAMPLERS["greedy"]))
    (program,) = session.bound_plan(1, "last", True).runner.programs
    say("  its graph", replay_us(device, program._graph))  # type: ignore[attr-defined]
    each, outside = bench_us(session, n)
    say("bench: waited for, not sampled", each)
    (program,) = session.bound_plan(1, "last", False).runner.programs
    say("  its graph", replay_us(device, program._graph))  # type: ignore[attr-defined]
    say("  Python outside of the run", outside)


def sampling(gpu: Any) -> None:
    """Print the time of the sampling kernels by settings."""
    device, stream = gpu.device, gpu.device.stream
    g = Graph()
    leaves = [g.input("logits", F32, (1, N_VOCAB)), g.input("settings", F32, (1, 8)),
              g.input("rng", I64, (1, 2)), g.input("history", I32, (1, 256))]  # fmt: skip
    node = g.op("sample", *leaves)
    rng = np.random.default_rng(0)
    at = {t: gpu.alloc(t.nbytes) for t in (*leaves, node)}
    at[leaves[3]].write(0, rng.integers(0, N_VOCAB, 256).astype(np.int32))
    scratch = gpu.alloc(launch.scratch_bytes(node, device.info))
    call = launch.Call(
        node, launch.Operand.of(node, at[node].address),
        tuple(launch.Operand.of(t, at[t].address) for t in leaves), device.info, scratch.address,
    )  # fmt: skip
    made: Any = launch.launches(call)
    gpu.modules.prepare(m.kernel for m in made)
    bound = [gpu.modules.bind(m) for m in made]

    def in_graph(issue: Callable[[], None], times: int) -> Any:
        issue()
        device.synchronize()
        stream.begin_capture()
        for _ in range(times):
            issue()
        return stream.end_capture()

    def both() -> None:
        for b in bound:
            b.issue()

    times = 10
    graph = in_graph(both, times)
    for width, what in ((3.0, "peaked"), (0.5, "flat")):
        at[leaves[0]].write(0, (rng.standard_normal(N_VOCAB) * width).astype(np.float32))
        print(f"sampling {N_VOCAB} {what} logits, us")
        for name, settings in SAMPLERS.items():
            at[leaves[1]].write(0, SamplerState(settings).vector)
            print(f"    {name:26} {replay_us(device, graph) / times:8.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", default="llama3.2-1b:Q4_0,llama3-8b:Q4_0")
    parser.add_argument("-n", type=int, default=256)
    parser.add_argument("--sample", action="store_true")
    args = parser.parse_args()
    quick_weights()
    if args.sample:
        sampling(find_backend("cuda"))
    for shape in filter(None, args.shapes.split(",")):
        tokens(shape, args.n)


if __name__ == "__main__":
    main()
