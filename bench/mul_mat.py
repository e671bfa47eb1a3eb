"""The native mul_mat against this machine's limits.

    python bench/mul_mat.py --types q4_0,q8_0,q4_K -t 2 -m 1,16,128 [--isa avx2] [--shape 2048x5632]

One line a type and number of columns: the best time of one product, giga operations a second (two a
multiply-add) and GB/s of weights read. For few columns as many copies of the weight are multiplied
in turn as do not fit a cache, so that memory is what is measured; for many, one.
"""

from __future__ import annotations

import argparse

import numpy as np

import gguflow.engine.ops
import gguflow.engine.quants  # noqa: F401  (both register what they define)
from gguflow.engine.backends.base import Buffer
from gguflow.engine.backends.cpu import CpuBackend
from gguflow.engine.graph import F32, Graph, Tensor, dtype_by_name
from gguflow.models.shapes import random_bytes

ALL = "f32,f16,bf16,q4_0,q4_1,q5_0,q5_1,q8_0,q2_K,q3_K,q4_K,q5_K,q6_K"


class Places:
    """Where the tensors of the measured graph lie: the `Memory` a backend compiles against."""

    def __init__(self) -> None:
        self.at: dict[Tensor, Buffer] = {}
        self.packed: set[Tensor] = set()

    def locate(self, owner: Tensor) -> tuple[Buffer, int]:
        return self.at[owner], 0

    def is_packed(self, owner: Tensor) -> bool:
        return owner in self.packed


def best_ns(
    backend: CpuBackend, dtype: str, n: int, k: int, m: int, cold_bytes: int, repeats: int
) -> float:
    """Nanoseconds of one product [m, k] x [n, k], the best seen."""
    t = dtype_by_name(dtype)
    graph, places = Graph(), Places()
    x = graph.input("x", F32, (m, k))
    places.at[x] = backend.alloc(x.nbytes)
    host = places.at[x].host()
    assert host is not None
    host[:] = (
        np.random.default_rng(0).standard_normal((m, k), np.float32).reshape(-1).view(np.uint8)
    )
    raw = random_bytes("w", (n, k), t)
    copies = max(1, -(-cold_bytes // raw.nbytes)) if m <= 4 else 1
    nodes = []
    for i in range(copies):
        w = graph.weight(f"w{i}", t, (n, k))
        node = graph.op("mul_mat", w, x)
        packed = backend.packed_bytes(w, [node]) > 0
        places.at[w] = backend.load_weight(w, raw.copy(), packed)
        places.at[node] = backend.alloc(node.nbytes)
        if packed:
            places.packed.add(w)
        nodes.append(node)
    run = backend.compile(nodes, places)
    ends = np.zeros(len(nodes) + 1, np.int64)
    best = np.inf
    for _ in range(repeats):
        run.run(ends)
        best = min(best, (ends[-1] - ends[0]) / len(nodes))
    return float(best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--types", default=ALL)
    parser.add_argument("--shape", default="2048x2048", help="rows x depth")
    parser.add_argument("-m", "--columns", default="1,128")
    parser.add_argument("-t", "--threads", type=int, default=None)
    parser.add_argument("--isa", default=None)
    parser.add_argument("--cold-mb", type=int, default=256, help="weights read in turn, in MB")
    parser.add_argument("-r", "--repeats", type=int, default=20)
    args = parser.parse_args()
    n, k = (int(v) for v in args.shape.split("x"))
    backend = CpuBackend(args.threads, args.isa)
    print(f"{backend.lib.isa}, {backend.n_threads} threads, {n}x{k}")
    print("| type | columns | us | GOP/s | GB/s |\n|---|---|---|---|---|")
    for dtype in args.types.split(","):
        for m in (int(v) for v in args.columns.split(",")):
            ns = best_ns(backend, dtype, n, k, m, args.cold_mb << 20, args.repeats)
            gops, gbs = 2 * n * k * m / ns, dtype_by_name(dtype).row_bytes(k) * n / ns
            print(f"| {dtype} | {m} | {ns / 1e3:.1f} | {gops:.1f} | {gbs:.1f} |", flush=True)


if __name__ == "__main__":
    main()
