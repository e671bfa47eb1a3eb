"""Prompts on a GPU: tokens per second of a shape, and where the time of its products goes.

    python bench/cuda_prompt.py [--shape llama3-8b] [--layers 8] [--types Q4_0,F16] [--tokens 512]

The tokens per second are those of a model of `--layers` layers, and of the whole one with the time
of a layer found by difference. The table times each step of each product by itself on weights that
rotate, so that they come from memory; TFLOP/s are those of the product.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np

from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import F32, Graph, dtype_by_name
from gguflow.engine.model import Model
from gguflow.engine.profile import Profile
from gguflow.kernels.cuda import launch
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.models import shapes

ROTATED_BYTES = 256 << 20
ROUNDS = 5


def step_times(gpu: Any, kind: str, n: int, k: int, m: int, op: str) -> list[tuple[str, float]]:
    """(name, device microseconds) of each launch of one op; the last is all of them together."""
    cp, stream, dtype = gpu.device.cupy, gpu.device.stream, dtype_by_name(kind)
    g = Graph()
    x = g.input("x", F32, (m, k))
    ws = [g.weight(f"w{i}", dtype, (n, k)) for i in range(2 if op == "mul_mat_swiglu" else 1)]
    srcs = [*ws, x] + ([g.input("r", F32, (m, n))] if op == "mul_mat_add" else [])
    node = g.op(op, *srcs)
    info = gpu.device.info
    scratch = gpu.alloc(launch.scratch_bytes(node, info))
    dst = gpu.alloc(node.nbytes)
    raw = {w: shapes.random_bytes("w", w.shape, dtype) for w in ws}
    copies = max(1, ROTATED_BYTES // sum(w.nbytes for w in ws))
    others = {s: gpu.alloc(s.nbytes) for s in srcs if s not in raw}
    others[x].write(0, np.random.default_rng(0).standard_normal((m, k)).astype(np.float32))
    bound, keep = [], []
    for _ in range(copies):
        at = dict(others)
        for w in ws:
            at[w] = gpu.alloc(w.nbytes)
            at[w].write(0, raw[w])
        keep.append(at)
        call = launch.Call(
            node, launch.Operand.of(node, dst.address),
            tuple(launch.Operand.of(s, at[s].address) for s in srcs), info, scratch.address,
        )  # fmt: skip
        made = launch.launches(call)
        gpu.modules.prepare(s.kernel for s in made if not isinstance(s, Gemm))
        bound.append([gpu.modules.bind(s) for s in made])
    names = [s.name if isinstance(s, Gemm) else s.kernel.entry for s in made]

    def best(pick: Any) -> float:
        begin, end, times = cp.cuda.Event(), cp.cuda.Event(), []
        for _ in range(ROUNDS):
            begin.record(stream)
            for steps in bound:
                for step in pick(steps):
                    step.issue()
            end.record(stream)
            end.synchronize()
            times.append(cp.cuda.get_elapsed_time(begin, end) * 1e3 / copies)
        return float(min(times))

    out = [(name, best(lambda s, i=i: s[i : i + 1])) for i, name in enumerate(names)]
    return [*out, ("all", best(lambda s: s))]


def products(gpu: Any, hp: Any, kind: str, m: int) -> None:
    """Print the table of one type."""
    kv = hp.n_head_kv * hp.head_dim
    for op, n, k in (
        ("mul_mat", hp.n_head * hp.head_dim, hp.n_embd),
        ("mul_mat", kv, hp.n_embd),
        ("mul_mat_swiglu", hp.n_ff, hp.n_embd),
        ("mul_mat_add", hp.n_embd, hp.n_ff),
    ):
        times = step_times(gpu, kind, n, k, m, op)
        flops = 2 * m * n * k * (2 if op == "mul_mat_swiglu" else 1)
        print(f"{kind} {op} {n}x{k} by {m}: {flops / times[-1][1] / 1e6:.0f} TFLOP/s")
        for name, us in times:
            print(f"    {us:8.1f} us  {name}")


def prefill_seconds(model: Model, m: int) -> float:
    session = model.new_session()
    times = []
    for _ in range(ROUNDS + 2):
        session.rewind(0)
        begin = time.perf_counter()
        session.prefill([5] * m, None)
        times.append(time.perf_counter() - begin)
    return float(np.median(times[2:]))


def profile_table(model: Model, m: int) -> None:
    """Print device microseconds of a prefill by op and kernel."""
    profile = Profile()
    session = model.new_session(profile)
    for _ in range(3):
        session.rewind(0)
        session.prefill([5] * m, None)
    sums: dict[tuple[str, str], list[float]] = {}
    for r in profile.rows([profile.steps[-1].step]):
        sums.setdefault((r.op, str(r.kernel)[:60]), []).append(r.us)
    for (op, kernel), us in sorted(sums.items(), key=lambda kv: -sum(kv[1]))[:16]:
        print(f"    {sum(us):9.1f} us  {len(us):4} x {op:16} {kernel}")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--shape", default="llama3-8b")
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--types", default="Q4_0,F16")
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--products-only", action="store_true", help="no whole models")
    args = p.parse_args()
    hp, tied = shapes.SHAPES[args.shape]
    gpu = find_backend("cuda")
    for kind in args.types.split(","):
        products(gpu, hp, kind.lower().replace("_k", "_K"), args.tokens)
        if args.products_only:
            continue
        seconds = {}
        for layers in dict.fromkeys((max(1, args.layers // 4), args.layers)):
            shapes.SHAPES["cut"] = replace(hp, n_layer=layers), tied
            model = Model.random(f"cut:{kind}", backends=("cuda", "cpu", "numpy"))
            seconds[layers] = prefill_seconds(model, args.tokens)
        rate = args.tokens / seconds[args.layers]
        (few, a), (many, b) = min(seconds.items()), max(seconds.items())
        layer = (b - a) / (many - few) if many > few else b / many
        whole = b + (hp.n_layer - many) * layer
        print(
            f"{kind} {args.shape}: {rate:.0f} tok/s with {args.layers} layers, "
            f"{layer * 1e6:.0f} us a layer, {args.tokens / whole:.0f} tok/s with {hp.n_layer}"
        )
        profile_table(model, args.tokens)


if __name__ == "__main__":
    main()
