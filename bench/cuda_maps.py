"""Element-wise and broadcasting kernels at 2^26 elements, beside CuPy and a device copy.

    python bench/cuda_maps.py

Bandwidth counts every operand read once and the result written once. Times are device times of many
launches in a row, the best of several rounds, on data far larger than the second-level cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gguflow.engine.ops  # noqa: F401  (registers the ops)
from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import Graph, Tensor, dtype_by_name

LAUNCHES, ROUNDS = 10, 7
SIDE = 1 << 13

# op, types, shape of a, shape of b (numpy order)
CASES: list[tuple[str, tuple[str, ...], tuple[int, ...], tuple[int, ...]]] = [
    *(("silu", (t,), (SIDE, SIDE), ()) for t in ("f32", "f16", "bf16")),
    ("neg", ("f32",), (SIDE, SIDE), ()),
    ("neg", ("f16",), (SIDE, SIDE), ()),
    *(("add", (t, t), (SIDE, SIDE), (SIDE, SIDE)) for t in ("f32", "f16")),
    ("add", ("f32", "f16"), (SIDE, SIDE), (SIDE, SIDE)),
    ("add", ("f32", "f32"), (SIDE, SIDE), (SIDE,)),
    ("add", ("f16", "f16"), (SIDE, SIDE), (SIDE,)),
    ("add", ("f32", "f32"), (SIDE, SIDE), (SIDE, 1)),
    ("add", ("f32", "f32"), (SIDE, SIDE), (1,)),
    ("mul", ("f32", "f32"), (64, 1024, 32, 32), (1024, 1, 1)),
    ("mul", ("f32", "f32"), (64, 1024, 32, 32), (64, 1, 32, 32)),
    ("add", ("f32", "f32"), (1 << 20, 64), (64,)),
    ("add", ("f32", "f32"), (1 << 20, 63), (63,)),
    ("add", ("f32", "f32"), (1 << 22, 16), (16,)),
    ("add", ("f32", "f32"), (1 << 24, 4), (1 << 24, 1)),
    ("div", ("f32", "f32"), (8, 1 << 20, 8), (1 << 20, 1)),
]


class Places:
    """Tensors in buffers of their own."""

    def __init__(self) -> None:
        self.at: dict[Tensor, Any] = {}

    def locate(self, owner: Tensor) -> tuple[Any, int]:
        return self.at[owner], 0

    def is_packed(self, owner: Tensor) -> bool:
        return False


def best_us(cp: Any, stream: Any, issue: Callable[[], object]) -> float:
    """Device microseconds of one call."""
    begin, end = cp.cuda.Event(), cp.cuda.Event()
    times = []
    for _ in range(ROUNDS):
        begin.record(stream)
        for _ in range(LAUNCHES):
            issue()
        end.record(stream)
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(begin, end) * 1e3 / LAUNCHES)
    return float(min(times))


def cupy_issue(cp: Any, op: str, arrays: list[Any], out: Any) -> Callable[[], object]:
    a = arrays[0]
    if op == "silu":
        kernel = cp.ElementwiseKernel("T x", "T y", "y = (T)((float)x / (1.f + expf(-(float)x)))")
        return lambda: kernel(a, out)
    if op == "neg":
        return lambda: cp.negative(a, out=out)
    function = {"add": cp.add, "mul": cp.multiply, "div": cp.divide}[op]
    return lambda: function(a, arrays[1], out=out)


def main() -> None:
    gpu: Any = find_backend("cuda")
    cp, stream = gpu.device.cupy, gpu.device.stream
    n = SIDE * SIDE * 4
    one, two = gpu.alloc(n), gpu.alloc(n)
    copy = cp.cuda.runtime.memcpyAsync
    us = best_us(cp, stream, lambda: copy(two.address, one.address, n, 3, stream.ptr))
    roof = 2 * n / us / 1e3
    print(f"{gpu.device.name}: copy {roof:.0f} GB/s")
    print("op    types     a                  b                     us   GB/s of copy  vs CuPy")
    for op, types, a, b in CASES:
        graph, places = Graph(), Places()
        srcs = [
            graph.input(f"x{i}", dtype_by_name(t), s)
            for i, (t, s) in enumerate(zip(types, (a, b), strict=False))
        ]
        node = graph.op(op, *srcs)
        for t in (*srcs, node):
            places.at[t] = gpu.alloc(t.nbytes)
        for t in srcs:
            raw = np.random.default_rng(0).uniform(0.5, 2, t.shape).astype(np.float32)
            bits = (raw.view(np.uint32) >> 16).astype(np.uint16)
            places.at[t].write(0, bits if t.dtype.name == "bf16" else raw.astype(t.dtype.storage))
        executable = gpu.compile([node], places)
        executable.run()
        mine = best_us(cp, stream, executable._enqueue)
        moved = sum(t.nbytes for t in (*srcs, node))
        theirs = float("nan")
        if "bf16" not in types:
            with stream:
                arrays = [cp.asarray(places.at[t].read(0, t.nbytes).view(t.dtype.storage)
                                     .reshape(t.shape)) for t in srcs]  # fmt: skip
                out = cp.empty(node.shape, node.dtype.storage)
                issue = cupy_issue(cp, op, arrays, out)
                issue()
                theirs = best_us(cp, stream, issue)
            del arrays, out
        rate = moved / mine / 1e3
        print(
            f"{op:5} {'+'.join(types):9} {str(list(a)):18} {str(list(b)):16} {mine:7.1f} "
            f"{rate:6.0f} {rate / roof:7.1%} {theirs / mine:7.2f}x"
        )


if __name__ == "__main__":
    main()
