"""Attention on the GPU: microseconds, GB/s and TFLOP/s at the shapes of Llama 3 models.

    python bench/cuda_attention.py [TYPE ...]     types of the cache; f16, q8_0 and f32 if none

Each figure is that of a captured graph of many layers, whose caches together are larger than the
second-level cache, divided by their number.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import gguflow.engine.ops  # noqa: F401  (registers the ops)
from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import F32, I32, Graph, Tensor, dtype_by_name, op_spec
from gguflow.engine.quants import encode

# heads, KV heads, head size
MODELS = {"8B": (32, 8, 128), "1B": (32, 8, 64)}
DECODE = [(n_tok, past) for past in (100, 1000, 8191, 32_767) for n_tok in (1, 8)]
PREFILL = [(512, 0), (512, 7680), (2048, 6144), (8192, 0)]
ROUNDS = 7


class Places:
    """Tensors as pieces of buffers."""

    def __init__(self) -> None:
        self.at: dict[Tensor, tuple[Any, int]] = {}

    def locate(self, owner: Tensor) -> tuple[Any, int]:
        return self.at[owner]

    def is_packed(self, owner: Tensor) -> bool:
        return False


def measure(gpu: Any, model: str, dtype: str, n_tok: int, past: int) -> None:
    heads, kv_heads, hd = MODELS[model]
    rng, t, n_ctx = np.random.default_rng(0), dtype_by_name(dtype), max(past + n_tok, 512)
    seen = 2 * (past + n_tok) * kv_heads * hd * t.nbytes / t.block
    layers = int(min(max(1, 3e8 / seen), 256)) if n_tok <= 8 else 4
    graph, places, nodes = Graph(), Places(), []

    def place(x: Tensor, raw: np.ndarray) -> Tensor:
        places.at[x] = (gpu.alloc(x.nbytes), 0)
        places.at[x][0].write(0, raw)
        return x

    q = rng.standard_normal((n_tok, heads, hd)).astype(np.float32)
    q_in = place(graph.input("q", F32, q.shape), q)
    pos = place(graph.input("pos", I32, (n_tok,)), np.arange(past, past + n_tok, dtype=np.int32))
    raw = encode(t, rng.standard_normal((n_ctx, kv_heads, hd)).astype(np.float32))
    for i in range(layers):
        kv = [place(graph.state(f"{n}{i}", t, (n_ctx, kv_heads, hd)), raw) for n in "kv"]
        node = graph.attention(q_in, *kv, pos, scale=hd**-0.5)
        places.at[node] = (gpu.alloc(node.nbytes), 0)
        nodes.append(node)
    executable = gpu.compile(nodes, places)
    executable.run()
    captured = executable._capture()
    cp, stream = gpu.device.cupy, gpu.device.stream
    begin, end = cp.cuda.Event(), cp.cuda.Event()
    times = []
    for _ in range(ROUNDS):
        begin.record(stream)
        captured.launch(stream)
        end.record(stream)
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(begin, end) * 1e3 / layers)
    us = float(np.median(times))
    nbytes, _ = op_spec("attention").cost_at(nodes[0], past)
    pairs = n_tok * past + n_tok * (n_tok + 1) // 2
    rate, speed = nbytes / us / 1e3, 4 * hd * heads * pairs / us / 1e6
    print(
        f"{model} {dtype:5} {n_tok:5} tokens after {past:6}: {us:8.2f} us {rate:6.0f} GB/s "
        f"{speed:6.1f} TFLOP/s",
        flush=True,
    )


def main() -> None:
    gpu: Any = find_backend("cuda")
    print(gpu.device.name)
    for dtype in sys.argv[1:] or ("f16", "q8_0", "f32"):
        for model in MODELS:
            for n_tok, past in DECODE + PREFILL:
                measure(gpu, model, dtype, n_tok, past)


if __name__ == "__main__":
    main()
