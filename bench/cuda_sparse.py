"""The sparse feed-forward layer on the GPU, at the 7B shape: microseconds a layer and GB/s.

    python bench/cuda_sparse.py [--types f16,q4_0] [--only token,ring,hot,batch]

token: one token at several active fractions, its two kernels alone, and the dense layer. ring: the
second kernel with more or less of its rows on their way. hot: a bucket of rows. batch: tokens by
active rows and by dense products, where one must overtake the other at SPARSE_TOKENS of
kernels/cuda/sparse.py.

Each figure is that of a captured graph of many layers, which together do not fit into the
second-level cache, divided by their number. Every active neuron fires.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import numpy as np

import gguflow.engine.ops
import gguflow.engine.quants  # noqa: F401  (both register what they define)
from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import F32, I32, Graph, Tensor, dtype_by_name
from gguflow.kernels.cuda import axpy_sparse
from gguflow.kernels.cuda.launch import Call, Launch, Operand, launches, scratch_bytes
from gguflow.kernels.cuda.sparse import SPARSE_TOKENS

N_EMBD, N_FF, RANK = 4096, 11008, 1024
CACHE = 160 << 20  # bytes that one replay has to read, so that none is left from the one before
ROUNDS = 15
SKEW = 0.834  # of a power law whose first 26 % hold 80 %


class Layers:
    """Weights of several layers on the device. All products are positive."""

    def __init__(self, gpu: Any, dtype: str, n: int) -> None:
        self.gpu, self.dtype, self.n = gpu, dtype_by_name(dtype), n
        self.cp = gpu.device.cupy
        self.rng = np.random.default_rng(0)
        self.keep: list[Any] = []
        one = self._weight()
        with gpu.device.stream:
            self.weights = [[self.cp.asarray(one) for _ in range(3)] for _ in range(n)]

    def _weight(self) -> np.ndarray:
        """N_FF rows of N_EMBD elements of about 0.01, none below zero."""
        n = N_EMBD * N_FF
        if self.dtype.name == "f16":
            return (self.rng.random(n, np.float32) * 0.02).astype(np.float16)
        if self.dtype.name != "q4_0":
            raise SystemExit(f"{self.dtype.name}: f16 and q4_0 are what is measured here")
        blocks = self.rng.integers(0, 256, (n // 32, 18), np.uint8) | 0x88  # 0 to 7 times d
        blocks[:, :2] = np.frombuffer(np.float16(0.003).tobytes(), np.uint8)
        return blocks

    def put(self, x: np.ndarray) -> int:
        """The address of a copy on the device."""
        with self.gpu.device.stream:
            self.keep.append(self.cp.asarray(x))
        return int(self.keep[-1].data.ptr)

    def room(self, nbytes: int) -> int:
        return self.put(np.zeros(nbytes, np.uint8))

    def scores(self, m: int, fraction: float) -> np.ndarray:
        """idx: by a power law over neurons, so many of them above zero."""
        chance = ((1 + np.arange(N_FF)) / N_FF) ** -SKEW
        low, high = 0.0, 1.0
        for _ in range(50):  # what the law is multiplied by, with chances cut at one
            middle = (low + high) / 2
            low, high = (middle, high) if np.minimum(1, middle * chance).mean() < fraction else (
                low, middle)  # fmt: skip
        likely = self.rng.permutation(np.minimum(1, high * chance))
        fires = self.rng.uniform(size=(m, N_FF)) < (1 if fraction >= 1 else likely)
        return np.where(fires, 1, -1).astype(np.float32)


def steps_of(gpu: Any, node: Tensor, addresses: dict[Tensor, int], out: int) -> list[Any]:
    info = gpu.device.info
    srcs = tuple(None if s is None else Operand.of(s, addresses[s]) for s in node.srcs)
    scratch = gpu.scratch(1 << 30).address
    assert scratch_bytes(node, info) <= 1 << 30
    return list(launches(Call(node, Operand.of(node, out), srcs, info, scratch)))


def replay_us(gpu: Any, steps: Iterable[Any], layers: int) -> float:
    """Median microseconds a layer of the steps as a captured graph."""
    steps, modules, stream = list(steps), gpu.modules, gpu.device.stream
    modules.prepare(s.kernel for s in steps if isinstance(s, Launch))
    bound = [modules.bind(s) for s in steps]
    for b in bound:
        b.issue()
    stream.synchronize()
    stream.begin_capture()
    for b in bound:
        b.issue()
    graph = stream.end_capture()
    cp = gpu.device.cupy
    events = [cp.cuda.Event() for _ in range(ROUNDS + 1)]
    for e in events:
        e.record(stream)
        graph.launch(stream)
    stream.synchronize()
    times = [cp.cuda.get_elapsed_time(a, b) for a, b in zip(events, events[1:], strict=False)]
    return float(np.median(times)) * 1e3 / layers


def sparse(
    ls: Layers, m: int, scores: np.ndarray | None, bucket: int = 0, n: int = 0
) -> list[list[Any]]:
    """The steps of each of n layers."""
    made = []
    for gate, up, down in ls.weights[: n or ls.n]:
        g = Graph()
        n_rows = bucket or N_FF
        w = [g.weight(name, ls.dtype, (n_rows, N_EMBD)) for name in ("gate", "up", "down")]
        x = g.input("x", F32, (m, N_EMBD))
        at = dict(zip(w, (int(v.data.ptr) for v in (gate, up, down)), strict=True))
        at[x] = ls.put(ls.rng.uniform(0.5, 1, (m, N_EMBD)).astype(np.float32))
        idx = neurons = None
        if scores is not None:
            idx = g.input("idx", F32, scores.shape)
            at[idx] = ls.put(np.roll(scores, ls.rng.integers(N_FF), -1))
        if bucket:
            neurons = g.weight("bucket", I32, (bucket,))
            at[neurons] = ls.put(
                np.sort(ls.rng.choice(N_FF, bucket, replace=False)).astype(np.int32)
            )
        node = g.sparse_ffn(*w, x, idx, neurons)
        made.append(steps_of(ls.gpu, node, at, ls.room(4 * m * N_EMBD)))
    return made


def dense(ls: Layers, m: int, n: int = 0) -> list[Any]:
    """SwiGLU of the same shapes: what a dense layer takes."""
    made = []
    for gate, up, down in ls.weights[: n or ls.n]:
        g = Graph()
        w = [g.weight(name, ls.dtype, (N_FF, N_EMBD)) for name in ("gate", "up")]
        last = g.weight("down", ls.dtype, (N_EMBD, N_FF))
        x, h = g.input("x", F32, (m, N_EMBD)), g.input("h", F32, (m, N_FF))
        at = dict(zip((*w, last), (int(v.data.ptr) for v in (gate, up, down)), strict=True))
        at[x], at[h] = (
            ls.put(np.ones((m, N_EMBD), np.float32)),
            ls.put(np.ones((m, N_FF), np.float32)),
        )
        made += steps_of(ls.gpu, g.mul_mat_swiglu(*w, x), at, at[h])
        made += steps_of(ls.gpu, g.mul_mat(last, h), at, ls.room(4 * m * N_EMBD))
    return made


def predictor(ls: Layers, n: int) -> list[Any]:
    made = []
    for first, second, _ in ls.weights[:n]:
        g = Graph()
        fc1, fc2 = (
            g.weight("fc1", ls.dtype, (RANK, N_EMBD)),
            g.weight("fc2", ls.dtype, (N_FF, RANK)),
        )
        x, h = g.input("x", F32, (1, N_EMBD)), g.input("h", F32, (1, RANK))
        r = g.input("r", F32, (1, RANK))
        at = {fc1: int(first.data.ptr), fc2: int(second.data.ptr)}
        at[x], at[h] = ls.put(np.ones((1, N_EMBD), np.float32)), ls.room(4 * RANK)
        at[r] = ls.room(4 * RANK)
        made += steps_of(ls.gpu, g.mul_mat(fc1, x), at, at[h])
        made += steps_of(ls.gpu, g.relu(h), at, at[r])
        made += steps_of(ls.gpu, g.mul_mat(fc2, r), at, ls.room(4 * N_FF))
    return made


def flat(steps: Iterable[list[Any]]) -> list[Any]:
    return [s for layer in steps for s in layer]


def line(ls: Layers, what: str, us: float, nbytes: float = 0) -> None:
    rate = f"{nbytes / us / 1e3:6.0f} GB/s" if nbytes else ""
    print(f"{ls.dtype.name:5} {what:46} {us:8.2f} us {rate}", flush=True)


def row_bytes(ls: Layers) -> int:
    return ls.dtype.row_bytes(N_EMBD)


def token(ls: Layers) -> None:
    whole = 3 * N_FF * row_bytes(ls)
    line(ls, "dense, 1 token", replay_us(ls.gpu, dense(ls, 1), ls.n), whole)
    line(ls, f"predictor of rank {RANK}", replay_us(ls.gpu, predictor(ls, ls.n), ls.n),
         RANK * (row_bytes(ls) + ls.dtype.row_bytes(N_FF)))  # fmt: skip
    for fraction in (0.05, 0.1, 0.3, 0.6, 1.0):
        scores = ls.scores(1, fraction)
        steps = sparse(ls, 1, scores)
        nbytes = 3 * row_bytes(ls) * int((scores > 0).sum())
        line(ls, f"sparse, {fraction:.0%} active", replay_us(ls.gpu, flat(steps), ls.n), nbytes)
        if fraction in (0.1, 1.0):
            for i, (name, share) in enumerate((("gate and up", 2 / 3), ("down", 1 / 3))):
                us = replay_us(ls.gpu, [s[i] for s in steps], ls.n)
                line(ls, f"    {name} alone", us, nbytes * share)
    exact = sparse(ls, 1, None)
    line(ls, "by the gate alone, all of which fires", replay_us(ls.gpu, flat(exact), ls.n), whole)


def ring(ls: Layers) -> None:
    standard, quantized = (dict(axpy_sparse.RING), axpy_sparse.BESIDE), ls.dtype.is_quantized
    for fraction in (0.1, 1.0):
        scores, seen = ls.scores(1, fraction), set()
        for size in (28, 37, 48, 64, 80, 96, 128):
            axpy_sparse.RING[quantized], axpy_sparse.BESIDE = size << 10, 1 << 20
            steps = sparse(ls, 1, scores)
            entry = steps[0][1].kernel.entry
            if entry in seen:
                continue
            seen.add(entry)
            whole = replay_us(ls.gpu, flat(steps), ls.n)
            us = replay_us(ls.gpu, [s[1] for s in steps], ls.n)
            what = f"down, {fraction:.0%}: {entry.split('<')[1]} (layer {whole:.2f})"
            line(ls, what, us, row_bytes(ls) * int((scores > 0).sum()))
    rings, axpy_sparse.BESIDE = standard
    axpy_sparse.RING.update(rings)


def hot(ls: Layers) -> None:
    for bucket in (300, 1000, 3000):
        us = replay_us(ls.gpu, flat(sparse(ls, 1, ls.scores(1, 0.3), bucket)), ls.n)
        line(ls, f"bucket of {bucket}, 30 % active", us, 3 * row_bytes(ls) * 0.3 * bucket)


def batch(ls: Layers) -> None:
    standard = dict(SPARSE_TOKENS)

    def forced(limit: int, m: int, scores: np.ndarray, n: int) -> float:
        SPARSE_TOKENS[ls.dtype.name] = limit
        steps = flat(sparse(ls, m, scores, n=n))
        SPARSE_TOKENS.update(standard)
        return replay_us(ls.gpu, steps, n)

    for m in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 512):
        n = ls.n if m <= 16 else min(ls.n, 4)
        scores = ls.scores(m, 0.1)
        union = float((scores > 0).any(0).mean())
        us = {"swiglu": replay_us(ls.gpu, dense(ls, m, n), n), "dense": forced(0, m, scores, n)}
        if m <= 128:
            us["sparse"] = forced(1 << 20, m, scores, n)
        found = ", ".join(f"{k} {v:8.2f} us" for k, v in us.items())
        print(f"{ls.dtype.name:5} {m:4} tokens, {union:4.0%} wanted by any: {found}", flush=True)


PARTS = {"token": token, "ring": ring, "hot": hot, "batch": batch}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--types", default="f16,q4_0")
    parser.add_argument("--only", default=",".join(PARTS))
    args = parser.parse_args()
    gpu = find_backend("cuda")
    for dtype in args.types.split(","):
        each = 3 * N_FF * dtype_by_name(dtype).row_bytes(N_EMBD)
        made = Layers(gpu, dtype, max(6, int(10 * CACHE / each)))
        for part in args.only.split(","):
            PARTS[part](made)


if __name__ == "__main__":
    main()
