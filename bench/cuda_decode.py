"""Single-token decode on a GPU: tokens per second of model shapes with random weights.

    python bench/cuda_decode.py [--shapes llama3-8b:Q4_0,llama3.2-1b:Q4_0] [-n 128] [--depth 0]
        [--equal-bits [few|many]] [--compact-weights auto] [--ops]

For each shape: tokens per second of a greedy generation, which runs ahead of the host; microseconds
of the captured graph alone, replayed back to back; and the weights' bytes over that time.
--ops adds the time by op, from timestamps in the graph (which keep a kernel from
starting before the one before it ends).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from functools import cache
from typing import Any

import numpy as np

from gguflow.cli.options import add_equal_bits
from gguflow.engine.graph import DType, Role
from gguflow.engine.limits import COMPACT_MODES
from gguflow.engine.model import Model
from gguflow.engine.plan_key import step_key
from gguflow.engine.profile import Profile
from gguflow.engine.sampling import SamplerSettings
from gguflow.models import shapes

REPLAYS = 100


def quick_weights() -> None:
    """Draw weights once a shape and type: the values do not matter and drawing them takes long."""
    draw = shapes.random_bytes

    @cache
    def once(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        return draw("w", shape, dtype)

    shapes.random_bytes = lambda name, shape, dtype, gain=1.0: once(shape, dtype)


def replay_us(device: Any, graph: Any) -> float:
    """Microseconds of a graph, one right after another: events between them would cost."""
    stream = device.stream
    begin, end = device.cupy.cuda.Event(), device.cupy.cuda.Event()
    graph.launch(stream)
    begin.record(stream)
    for _ in range(REPLAYS):
        graph.launch(stream)
    end.record(stream)
    end.synchronize()
    return float(device.cupy.cuda.get_elapsed_time(begin, end)) * 1e3 / REPLAYS


def op_times(model: Model, ids: list[int]) -> Counter[str]:
    """Microseconds a step, by op."""
    profile = Profile()
    session = model.new_session(profile)
    steps = list(session.generate(ids, 12, SamplerSettings(temperature=0.0)))
    last = [s.step for s in profile.steps][-len(steps) // 2 :]
    found: Counter[str] = Counter()
    for row in profile.rows(last):
        found[row.op] += row.us / len(last)
    return found


def measure(shape: str, n: int, depth: int, ops: bool, **options: Any) -> None:
    """Print the line of one shape."""
    n_ctx = depth + n + 64
    model = Model.random(shape, backends=("cuda", "numpy"), n_ctx=n_ctx, **options)
    session, ids = model.new_session(), [1] * max(depth, 4)
    tokens = session.generate(ids, n + 8, SamplerSettings(temperature=0.0))
    for _ in range(8):  # the prompt, the capture
        next(tokens)
    begin = time.perf_counter()
    got = sum(1 for _ in tokens)
    each = (time.perf_counter() - begin) / got
    bound = session.bound_plan(1, "last", True)
    us = replay_us(bound.runner.programs[0]._device, bound.token_loop._graphs[0])
    leaves = model.plan(step_key(1, "last", True)).leaves(Role.WEIGHT)
    nbytes = sum(t.nbytes for t in leaves if t.name != "token_embd.weight" or len(leaves) < 2)
    print(
        f"{shape:20} depth {depth}: {1 / each:7.1f} tok/s ({each * 1e6:.0f} us a step), "
        f"graph {us:.0f} us = {1e6 / us:.1f} tok/s, {nbytes / us / 1e6:.2f} TB/s of weights",
        flush=True,
    )
    if ops:
        for op, t in op_times(model, ids).most_common(12):
            print(f"    {op:24} {t:9.1f} us a step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", default="llama3-8b:Q4_0,llama3.2-1b:Q4_0")
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("--depth", type=int, default=0)
    add_equal_bits(parser)
    parser.add_argument("--compact-weights", choices=COMPACT_MODES, default="auto")
    parser.add_argument("--ops", action="store_true")
    args = parser.parse_args()
    quick_weights()
    for shape in args.shapes.split(","):
        measure(shape, args.n, args.depth, args.ops, equal_bits=args.equal_bits,
                compact_weights=args.compact_weights)  # fmt: skip


if __name__ == "__main__":
    main()
