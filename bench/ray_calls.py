"""What it takes to ask a process on a Ray cluster for something, in the ways there are.

python bench/ray_calls.py [--kib 16] [--n 400]

A call to an actor and its answer; the same over a line, as stages on one node are asked, and
through a compiled graph; a value on its way to the second of two actors; a token of a stream that
is an object each, and one of eight streams that come together, as replicas send them. Medians and
90th percentiles in microseconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gguflow.engine.cluster.connect import LOCAL, connect, disconnect
from gguflow.engine.cluster.line import Address, Line, listen

N_STREAMS = 8


class Echo:
    """What is asked."""

    def back(self, x: Any) -> Any:
        return x

    def listen(self) -> Address | None:
        return listen(lambda name, args: args[0])

    def stream(self, n: int) -> Iterator[tuple[int, int]]:
        for i in range(n):
            yield i, i


def report(name: str, fn: Callable[[], Any], n: int, per: int = 1) -> None:
    for _ in range(max(5, n // 10)):
        fn()
    took = []
    for _ in range(n):
        began = time.perf_counter()
        fn()
        took.append((time.perf_counter() - began) * 1e6 / per)
    took.sort()
    print(f"{name:<44} {took[n // 2]:8.0f} {took[9 * n // 10]:8.0f}")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    p.add_argument("--kib", type=int, default=16, help="of the value that goes there and back")
    p.add_argument("--n", type=int, default=400, help="of each measurement")
    args = p.parse_args()
    ray = connect(LOCAL, 3)
    try:
        actor = ray.remote(num_cpus=1)(Echo)
        a, b, c = actor.remote(), actor.remote(), actor.remote()
        x = np.zeros(256 * args.kib, np.float32)
        print(f"{'microseconds':<44} {'median':>8} {'p90':>8}")
        report("a call", lambda: ray.get(a.back.remote(0)), args.n)
        report(f"a call with {args.kib} KiB", lambda: ray.get(a.back.remote(x)), args.n)
        report("the same by way of another actor",
               lambda: ray.get(b.back.remote(a.back.remote(x))), args.n)  # fmt: skip
        line = Line.to(ray.get(b.listen.remote()), "an actor")
        if line is not None:
            report("a call over a line", lambda: line.ask(10.0, "back", 0), args.n)
            report(f"the same with {args.kib} KiB", lambda: line.ask(10.0, "back", x), args.n)
        rows = [(i, 5, 9, None, 0) for i in range(N_STREAMS)]
        report("a token of eight streams, one call for all",
               lambda: ray.get(a.back.remote(rows)), args.n, N_STREAMS)  # fmt: skip
        many = 100

        def stream() -> None:
            for ref in a.stream.options(num_returns="streaming").remote(many):
                ray.get(ref)

        report("a token of a stream of objects", stream, max(3, args.n // 100), many)
        from ray.dag import InputNode

        with InputNode() as given:
            graph = c.back.bind(given).experimental_compile()
        report(f"a compiled graph with {args.kib} KiB", lambda: ray.get(graph.execute(x)), args.n)
        graph.teardown()
    finally:
        disconnect()


if __name__ == "__main__":
    main()
