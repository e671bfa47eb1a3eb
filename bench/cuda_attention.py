"""Attention and sampling on a GPU, at the sizes of an 8B model: microseconds, GB/s and TFLOP/s.

    python bench/cuda_attention.py [--heads 32,8] [--head-dim 128] [--type f16] [--no-check]
        [--only WORDS]

Attention: one token to 128 in sequences of their own after more and more others, prompts, and
single tokens beside pieces of prompts, each in a graph of several layers with caches of their own,
replayed back to back. Sampling: rows of 128,256 logits. What is checked against the specification's
reference in float64 shows its normalized mean squared error.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda_decode import replay_us

from gguflow.engine.backends.base import find_backend
from gguflow.engine.backends.numpy import read
from gguflow.engine.graph import F32, I32, I64, Graph, Tensor, dtype_by_name, op_spec
from gguflow.engine.plan_key import PAGE
from gguflow.engine.quants import encode
from gguflow.engine.sampling import SamplerSettings

N_VOCAB = 128_256
CACHE_BYTES = 256 << 20  # of all layers: more than the second-level cache keeps
MOST_LAYERS = 8
SAMPLERS = {
    "greedy": SamplerSettings(temperature=0.0),
    "default (40, 0.95, 0.05)": SamplerSettings(),
    "the same, penalty": SamplerSettings(repeat_penalty=1.1),
    "all, top_p 0.95": SamplerSettings(top_k=0),
}


@dataclass(frozen=True)
class Work:
    """Sequences as (new tokens, keys after them); those with one new token come first."""

    name: str
    seqs: Sequence[tuple[int, int]]
    window: int = 0
    checked: bool = True

    @property
    def n_single(self) -> int:
        return sum(n == 1 for n, _ in self.seqs)

    @property
    def n_tokens(self) -> int:
        return sum(n for n, _ in self.seqs)


class Places:
    """Device memory of tensors: the `Memory` a backend compiles against."""

    def __init__(self, gpu: Any, values: Mapping[Tensor, np.ndarray | int]) -> None:
        self.at = {}
        for t, value in values.items():
            self.at[t] = gpu.alloc(t.nbytes), 0
            if not isinstance(value, int):
                self.at[t][0].write(0, value)

    def locate(self, owner: Tensor) -> tuple[Any, int]:
        return self.at[owner]

    def is_packed(self, owner: Tensor) -> bool:
        return False


def time_of(gpu: Any, nodes: Sequence[Tensor], memory: Places) -> float:
    """Runs the nodes; microseconds a node."""
    executable = gpu.lower(nodes, memory)
    executable.run()
    stream = gpu.device.stream
    stream.begin_capture()
    executable.issue()
    graph = stream.end_capture()
    return replay_us(gpu.device, graph) / len(nodes)


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    error = np.sum((found.astype(np.float64) - expected) ** 2)
    return float(error / np.sum(expected.astype(np.float64) ** 2))


def tables(work: Work) -> tuple[np.ndarray, int]:
    """Pages of the sequences in a mixed order, and how many there are."""
    need = [-(-keys // PAGE) for _, keys in work.seqs]
    order = np.random.default_rng(1).permutation(sum(need)).astype(np.int32)
    table = np.full((len(need), max(need)), -1, np.int32)
    at = 0
    for row, n in zip(table, need, strict=True):
        row[:n] = order[at : at + n]
        at += n
    return table, at


def attention(gpu: Any, work: Work, heads: tuple[int, int], hd: int, kv: str, check: bool) -> None:
    """Print the line of one kind of work."""
    rng = np.random.default_rng(0)
    table, n_pages = tables(work)
    dtype, n_rows, n = dtype_by_name(kv), n_pages * PAGE, work.n_tokens
    nbytes = 2 * dtype.row_bytes(hd) * heads[1] * n_rows
    layers = max(1, min(MOST_LAYERS, CACHE_BYTES // nbytes))
    g = Graph()
    q, pos, seq = g.input("q", F32, (n, heads[0], hd)), *(g.input(t, I32, (n,)) for t in ("p", "s"))
    pages = g.input("table", I32, table.shape)
    states = [
        [g.state(f"{t}{i}", dtype, (n_rows, heads[1], hd)) for t in "kv"] for i in range(layers)
    ]
    nodes = [
        g.attention(q, *kv, pos, seq, pages, scale=hd**-0.5, window=work.window,
                    n_single=work.n_single)
        for kv in states
    ]  # fmt: skip
    some = rng.standard_normal((4096, heads[1], hd)).astype(np.float32)
    raw = [encode(dtype, np.roll(some, i)).reshape(-1).view(np.uint8) for i in range(2)]
    cache = [np.resize(r.reshape(4096, -1), (n_rows, r.size // 4096)) for r in raw]
    values = {
        q: rng.standard_normal(q.shape).astype(np.float32),
        pos: np.concatenate([np.arange(k - m, k) for m, k in work.seqs]).astype(np.int32),
        seq: np.repeat(np.arange(len(work.seqs)), [m for m, _ in work.seqs]).astype(np.int32),
        pages: table,
    }
    memory = Places(
        gpu,
        {**values, **{s: c for kv in states for s, c in zip(kv, cache, strict=True)},
         **dict.fromkeys(nodes, 0)},
    )  # fmt: skip
    us = time_of(gpu, nodes, memory)
    spec = op_spec("attention")
    seen = [min(k, work.window or k) for _, k in work.seqs]
    moved = sum(seen) * nbytes / n_rows
    pairs = sum(sum(min(k - i, work.window or k) for i in range(m)) for m, k in work.seqs)
    flops = pairs * heads[0] * 4 * hd
    line = (
        f"{work.name:44} {us:9.2f} us {moved / us / 1e3:8.0f} GB/s {flops / us / 1e6:7.1f} TFLOP/s"
    )
    if check and work.checked:
        kv_values = [read(t, {t: c.reshape(-1)}) for t, c in zip(states[0], cache, strict=True)]
        params = spec.bind_params({"scale": hd**-0.5, "window": work.window})
        expected = spec.reference(values[q], *kv_values, values[pos], values[seq], table, **params)
        for node in (nodes[0], nodes[-1]):
            buffer, _ = memory.locate(node)
            found = buffer.read(0, node.nbytes).view(np.float32).reshape(node.shape)
            line += f"  nmse {nmse(found, expected):.1e}"
    print(line, flush=True)


def sampling(gpu: Any, rows: int, width: float, check: bool) -> None:
    """Print the lines of that many rows of logits."""
    rng = np.random.default_rng(0)
    g = Graph()
    logits, settings, numbers, history = leaves = [
        g.input("logits", F32, (rows, N_VOCAB)), g.input("settings", F32, (rows, 8)),
        g.input("rng", I64, (rows, 2)), g.input("history", I32, (rows, 256)),
    ]  # fmt: skip
    node = g.op("sample", *leaves)
    some = (rng.standard_normal((min(rows, 8), N_VOCAB)) * width).astype(np.float32)
    values = {
        logits: np.resize(some, (rows, N_VOCAB)),
        settings: np.zeros((rows, 8), np.float32),
        numbers: np.stack([np.arange(rows), np.arange(rows)], 1),
        history: rng.integers(0, N_VOCAB, (rows, 256)).astype(np.int32),
    }
    memory = Places(gpu, {**values, node: 0})
    for name, sampler in SAMPLERS.items():
        values[settings][:] = sampler.vector()
        memory.locate(settings)[0].write(0, values[settings])
        us = time_of(gpu, [node], memory)
        rate = rows * N_VOCAB * 4 / us / 1e3
        line = f"sample {rows:4} rows, width {width}, {name:26} {us:8.2f} us {rate:8.0f} GB/s"
        if check:
            found = memory.locate(node)[0].read(0, node.nbytes).view(np.int32)
            part = np.unique(np.linspace(0, rows - 1, 6).astype(int))
            expected = op_spec("sample").reference(*(values[t][part] for t in leaves))
            line += f"  wrong: {int((found[part] != expected).sum())} of {len(part)}"
        print(line, flush=True)


def works() -> list[Work]:
    rng = np.random.default_rng(3)
    chunks = [(150, 150), (150, 700), (148, 2000)]
    return [
        *(Work(f"{n} sequence{'s' * (n > 1)} after {d}", [(1, d + 1)] * n, checked=n * d < 20_000)
          for d in (100, 256, 1000, 2048, 8191) for n in (1, 2, 4, 8, 16, 32, 64, 128)
          if n * d <= 140_000),
        Work("128 sequences after 10 to 2000",
             [(1, int(k)) for k in rng.integers(10, 2000, 128)], checked=False),
        Work("128 sequences after 2000, window 256", [(1, 2001)] * 128, 256),
        Work("prompt of 512", [(512, 512)]),
        Work("prompt of 4096", [(4096, 4096)], checked=False),
        Work("512 tokens after 3584", [(512, 4096)], checked=False),
        Work("4 prompts of 128", [(128, 128)] * 4),
        *(Work(f"{n} tokens after {d}", [(n, d + n)], checked=d < 8000)
          for d in (1000, 8000) for n in (2, 4, 8, 16, 64)),
        Work("64 single after 256, 448 of 3 prompts", [*[(1, 257)] * 64, *chunks]),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--heads", default="32,8")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--type", default="f16")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--only", default="", help="what a line's name has to contain")
    args = parser.parse_args()
    gpu, check = find_backend("cuda"), not args.no_check
    n_head, n_head_kv = map(int, args.heads.split(","))
    for work in works():
        if args.only in work.name:
            attention(gpu, work, (n_head, n_head_kv), args.head_dim, args.type, check)
    for rows in (1, 8, 128) if args.only in "sample" else ():
        for width in (3.0, 0.5):
            sampling(gpu, rows, width, check)


if __name__ == "__main__":
    main()
