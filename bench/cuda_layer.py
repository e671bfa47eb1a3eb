"""Where a layer's time goes on a GPU, by leaving parts of it out: us a layer of an 8B shape.

    python bench/cuda_layer.py [--type q4_0] [-d 512] [-c 0] [--rows 1,2,4,8,16]
        [--parts qaogd,qogd,d] [--equal-bits [few|many]] [--compact]

Parts are queries with keys and values (q), attention (a), output (o), gate with up (g) and down
(d), each with the norm before it and the residual behind, of rows of one sequence after so many
others. Layers of parts stand after each other in a graph, with weights of their own, and so run
into each other as they do in a model: what a part takes by itself and what it adds to the others
differ by what they wait for. Weights are zeros.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from cuda_attention import Places, time_of

from gguflow.cli.options import add_equal_bits
from gguflow.engine.backends.cuda import CudaBackend
from gguflow.engine.graph import F16, F32, I32, DType, Graph, Tensor, dtype_by_name
from gguflow.engine.plan_key import PAGE

LAYERS = 6  # more weights than the second-level cache keeps
WIDTH, FEED_FORWARD, HEAD, HEADS, KV_HEADS = 4096, 14_336, 128, 32, 8


def layers(g: Graph, t: DType, m: int, depth: int, room: int, parts: str) -> list[Tensor]:
    """The nodes of all layers, of m rows."""
    pages, rows_kv = -(-max(room, depth + m) // PAGE), KV_HEADS * HEAD
    pos, rows, seq = (g.input(name, I32, (m,)) for name in ("pos", "rows", "seq"))
    table = g.input("table", I32, (1, pages))
    q0, attended = g.input("q", F32, (m, HEADS, HEAD)), g.input("attended", F32, (m, WIDTH))
    x, inner = g.input("x", F32, (m, WIDTH)), g.input("inner", F32, (m, FEED_FORWARD))
    norm = g.weight("norm", F32, (WIDTH,))
    heads = {"head_dim": HEAD, "n_dims": HEAD, "mode": "neox", "eps": 1e-5}
    made = []
    for i in range(LAYERS):

        def weight(name: str, n: int, k: int = WIDTH, i: int = i) -> Tensor:
            return g.weight(f"{name}{i}", t, (n, k))

        q, a, h = q0, attended, inner
        states = [g.state(f"{name}{i}", F16, (PAGE * pages, rows_kv)) for name in "kv"]
        if "q" in parts:
            weights = weight("wq", WIDTH), weight("wk", rows_kv), weight("wv", rows_kv)
            q = g.op("norm_qkv_rope", x, norm, *weights, pos, rows, *states, **heads)
            made.append(q)
        if "a" in parts:
            cache = [g.reshape(s, (PAGE * pages, KV_HEADS, HEAD)) for s in states]
            made.append(g.attention(q, *cache, pos, seq, table, scale=HEAD**-0.5, n_single=m))
            a = g.reshape(made[-1], (m, WIDTH))
        if "o" in parts:
            x = g.mul_mat_add(weight("output", WIDTH), a, x)
            made.append(x)
        if "g" in parts:
            gate, up = weight("gate", FEED_FORWARD), weight("up", FEED_FORWARD)
            h = g.op("norm_mul_mat_swiglu", x, norm, gate, up, eps=1e-5)
            made.append(h)
        if "d" in parts:
            x = g.mul_mat_add(weight("down", WIDTH, FEED_FORWARD), h, x)
            made.append(x)
    for node in made:
        node.n_single = m
    return made


def microseconds(
    gpu: CudaBackend, t: DType, m: int, depth: int, room: int, parts: str, compact: bool = False
) -> float:
    """Of a layer."""
    g = Graph()
    nodes = layers(g, t, m, depth, room, parts)
    places: dict[Tensor, np.ndarray | int] = dict.fromkeys((*g.leaves.values(), *nodes), 0)
    for name, leaf in g.leaves.items():
        if leaf.dtype.is_integer:
            v = np.arange(leaf.size) + (depth if name in ("pos", "rows") else 0)
            places[leaf] = (v * (name != "seq")).astype(np.int32).view(np.uint8)
    memory = Places(gpu, places)
    if compact:
        some = [w for w in g.leaves.values() if gpu.compactor.bytes_of(w, nodes)]
        gpu.compactor.make([(w, nodes, memory.at[w][0]) for w in some])
    return min(time_of(gpu, nodes, memory) for _ in range(2)) * len(nodes) / LAYERS


def table(
    gpu: CudaBackend, t: DType, depth: int, room: int, parts: Sequence[str], rows: Sequence[int],
    compact: bool,
) -> None:  # fmt: skip
    print(f"{t.name}, {depth} tokens before, us a layer")
    print("| parts | " + " | ".join(f"{m} rows" for m in rows) + " |")
    print("|---|" + "--:|" * len(rows))
    for some in parts:
        times = (f"{microseconds(gpu, t, m, depth, room, some, compact):.1f}" for m in rows)
        print(f"| {some} | " + " | ".join(times) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--type", default="q4_0", help="of the weights")
    parser.add_argument("-d", type=int, default=512, help="tokens before the rows")
    parser.add_argument("-c", type=int, default=0, help="tokens that there is room for")
    parser.add_argument("--rows", default="1,2,4,8,16")
    parser.add_argument("--parts", default="qaogd,qogd,aog,a,q,o,g,d")
    add_equal_bits(parser)
    parser.add_argument("--compact", action="store_true", help="weights in the form of single rows")
    args = parser.parse_args()
    rows = [int(n) for n in args.rows.split(",")]
    gpu = CudaBackend(0, args.equal_bits)
    table(gpu, dtype_by_name(args.type), args.d, args.c, args.parts.split(","), rows,
          args.compact)  # fmt: skip


if __name__ == "__main__":
    main()
