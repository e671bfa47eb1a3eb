"""A feed-forward layer over its active neurons against the whole layer, on the CPU.

    python bench/sparse.py --types f16,q4_0 -t 2 -m 1,101 --active 0.1 [--shape 2048x5632]

One line a type and number of tokens: microseconds a layer of the dense product and of sparse_ffn
with that fraction of the neurons active for a token (by a power law: the hottest 26 % hold 80 % of
the activations), their ratio, and GB/s of rows read. As many layers run in turn as do not fit a
cache. All gates are positive, so that every active row is read.
"""

from __future__ import annotations

import argparse

import numpy as np

import gguflow.engine.ops
import gguflow.engine.quants  # noqa: F401  (both register what they define)
from gguflow.engine.backends.cpu import CpuBackend
from gguflow.engine.graph import F32, Graph, Tensor, dtype_by_name
from gguflow.engine.kernel_bench.measure import Places


class Layers:
    """Layers of one kind, with weights of their own, measured together."""

    def __init__(self, backend: CpuBackend, shape: tuple[int, int], dtype: str, m: int) -> None:
        self.backend, self.m, self.shape = backend, m, shape
        self.graph, self.places = Graph(), Places()
        self.nodes: list[Tensor] = []
        self.dtype = dtype_by_name(dtype)
        self.rng = np.random.default_rng(0)
        self.x = self.input("x", np.abs(self.rng.standard_normal((m, shape[0]))))

    def input(self, name: str, values: np.ndarray) -> Tensor:
        t = self.graph.input(name, F32, values.shape)
        self.places.at[t] = self.backend.alloc(t.nbytes)
        self.places.at[t].write(0, values.astype(np.float32).reshape(-1).view(np.uint8))
        return t

    def weights(self, i: int, shapes: list[tuple[int, int]]) -> list[Tensor]:
        return [self.graph.weight(f"w{i}.{j}", self.dtype, s) for j, s in enumerate(shapes)]

    def load(self, weights: list[Tensor], raw: np.ndarray, *users: Tensor) -> None:
        """raw: bytes of positive values, which all weights share."""
        for w in weights:
            packed = self.backend.packed_bytes(w, users) > 0
            self.places.at[w] = self.backend.load_weight(w, raw.copy(), packed)
            if packed:
                self.places.packed.add(w)
        for node in users:
            self.places.at[node] = self.backend.alloc(node.nbytes)
            self.nodes.append(node)

    def best_ns(self, repeats: int) -> float:
        """Nanoseconds of all layers, the best seen."""
        program = self.backend.lower(self.nodes, self.places)
        best = np.inf
        for _ in range(repeats):
            ns = program.run_timed().ns
            best = min(best, float(ns[-1] - ns[0]))
        return best


def planted(rng: np.random.Generator, m: int, n_ff: int, fraction: float) -> np.ndarray:
    """Scores [m, n_ff], positive for about `fraction`: neuron i by chance ~ (i + 1)^-s, where s
    gives the hottest 26 % of the neurons 80 % of the activations, in random order."""
    ranks = np.arange(1, n_ff + 1)
    low, high = 0.0, 3.0
    for _ in range(60):
        s = (low + high) / 2
        shares = np.cumsum(ranks**-s) / np.sum(ranks**-s)
        low, high = (s, high) if shares[int(0.26 * n_ff)] < 0.8 else (low, s)
    chance = ranks**-s
    for _ in range(100):  # no chance is above 1
        chance = np.minimum(1, chance * fraction * n_ff / chance.sum())
    return np.where(rng.uniform(size=(m, n_ff)) < rng.permutation(chance), 1.0, -1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--types", default="f16,q4_0")
    parser.add_argument("--shape", default="2048x5632", help="n_embd x n_ff")
    parser.add_argument("-m", "--tokens", default="1")
    parser.add_argument("--active", type=float, default=0.1)
    parser.add_argument("-t", "--threads", type=int, default=None)
    parser.add_argument("--isa", default=None)
    parser.add_argument("--cold-mb", type=int, default=384, help="rows read in turn, in MB")
    parser.add_argument("-r", "--repeats", type=int, default=20)
    args = parser.parse_args()
    n_embd, n_ff = (int(v) for v in args.shape.split("x"))
    backend = CpuBackend(args.threads, args.isa)
    print(f"{backend.lib.isa}, {backend.n_threads} threads, {args.shape}, {args.active:.0%} active")
    print("| type | tokens | dense us | sparse us | ratio | GB/s |\n|---|---|---|---|---|---|")
    for dtype in args.types.split(","):
        t = dtype_by_name(dtype)
        values = np.abs(np.random.default_rng(1).standard_normal((n_ff, n_embd), np.float32))
        raw = backend.converter().encode(t, values).reshape(-1)
        for m in (int(v) for v in args.tokens.split(",")):
            dense = Layers(backend, (n_embd, n_ff), dtype, m)
            sparse = Layers(backend, (n_embd, n_ff), dtype, m)
            scores = planted(sparse.rng, m, n_ff, args.active)
            idx = sparse.input("idx", scores)
            read = 3 * int((scores > 0).any(axis=0).sum()) * t.row_bytes(n_embd)
            copies = max(1, -(-(args.cold_mb << 20) // read)) if m <= 4 else 2
            copies = min(copies, -(-(3 << 30) // (3 * raw.nbytes)))
            for i in range(copies):
                gate, up, down = sparse.weights(i, [(n_ff, n_embd)] * 3)
                out = sparse.graph.sparse_ffn(gate, up, down, sparse.x, idx)
                sparse.load([gate, up, down], raw, out)
            for i in range(max(1, min(copies, (1 << 30) // (3 * raw.nbytes)))):
                gate, up, down = dense.weights(i, [(n_ff, n_embd)] * 2 + [(n_embd, n_ff)])
                h = dense.graph.mul_mat_swiglu(gate, up, dense.x)
                dense.load([gate, up, down], raw, h, dense.graph.mul_mat(down, h))
            a = dense.best_ns(args.repeats) / (len(dense.nodes) / 2)
            b = sparse.best_ns(args.repeats) / len(sparse.nodes)
            print(f"| {dtype} | {m} | {a / 1e3:.0f} | {b / 1e3:.0f} | {a / b:.2f} | "
                  f"{read / b:.1f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
