"""The products of a decoder layer as a decode step of several sequences runs them: microseconds.

    python bench/cuda_columns.py [--shape llama3-8b] [--types Q4_0,F16] [--tokens 1,2,4,8,16]

Four ops follow each other in one captured graph, on weights that rotate, so that they come from
memory: norm_qkv_rope, mul_mat_add, norm_mul_mat_swiglu, mul_mat_add. Each is measured by itself too
(`alone`). Ways: one and one float (mul_mat_one.cu and mul_mat_one_float.cu, one column of quantized
and of 16-bit weights), vec (mul_mat_vec.cu, up to 8 columns), few (mul_mat_few.cu, quantized
weights, up to 16), stream (mul_mat_stream.cu, 16-bit weights, up to 16), tma (mul_mat_tma.cu,
16-bit weights, 2 and more), columns (mul_mat_columns.cu), tiles (mul_mat_tiles.cu, quantized
weights, more than 128), with equal bits integers (mul_mat_integers.cu, quantized weights) and of
16-bit weights tma many (mul_mat_tma_many.cu, 17 and more), chain (mul_mat_chain.cu, 2 to 16), wide
(mul_mat_wide.cu, up to 128) and library (mul_mat_library.py, of which k has one part), parts (the
ops of which the fused ones are made, a library's products where these come before ours).
`error` is the largest difference from float64 in units of the result's root mean square. --head
adds norm_mul_mat of the vocabulary, alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import gguflow.engine.ops  # noqa: F401  (registers the ops)
from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import F16, F32, I32, DType, Graph, Tensor, dtype_by_name, op_spec
from gguflow.engine.quants import decode
from gguflow.kernels.cuda import (
    mul_mat,
    mul_mat_chain,
    mul_mat_columns,
    mul_mat_few,
    mul_mat_gemm,
    mul_mat_integers,
    mul_mat_library,
    mul_mat_norm,
    mul_mat_one,
    mul_mat_one_float,
    mul_mat_stream,
    mul_mat_tiles,
    mul_mat_tma,
    mul_mat_tma_many,
    mul_mat_wide,
)
from gguflow.kernels.cuda.columns import products
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.kernels.cuda.launch import Call, DeviceInfo, Launch, Operand, launches, scratch_bytes
from gguflow.models import shapes

ROTATED_BYTES, REPLAYS, CHECKED, ROPE_BASE, N_STATE = 384 << 20, 4, 257, 5e5, 4096
Make = Callable[[Call], list[Launch | Gemm]]
EPS = {"eps": 1e-5}


def vec(call: Call) -> list[Launch | Gemm]:
    norm = (call.node.op or "").startswith("norm_")
    return mul_mat_norm.launches(call, most=8) if norm else mul_mat.launches(call, most=8)


def by(module: Any, mixed: bool = False, **options: Any) -> Make:
    def make(call: Call) -> list[Launch | Gemm]:
        found: list[Launch | Gemm] = []
        for p in products(call.node, call.srcs, call.dst, mixed):
            for step in module.launches(p, call.device, call.scratch, **options):
                if step not in found:
                    found.append(step)
        return found

    return make


def parts(call: Call) -> list[Launch | Gemm]:
    """The fused op as its parts; products by a library where it takes them."""
    node, device = call.node, call.device
    if not (node.op or "").startswith("norm_"):
        srcs = call.srcs
        if mul_mat_gemm.applies(node, srcs, device):
            return mul_mat_gemm.launches(call)
        return mul_mat.launches(call)
    return mul_mat_norm.by_parts(call, parts_launches)


def parts_launches(call: Call) -> list[Launch | Gemm]:
    if call.node.op in mul_mat.OPS:
        return parts(call)
    return [*launches(call)]


def ways(
    node: Tensor, m: int, info: DeviceInfo, tiles: dict[str, mul_mat_columns.Tile]
) -> Iterator[tuple[str, Make]]:
    srcs = tuple(None if s is None else Operand.of(s, 0) for s in node.srcs)
    made = products(node, srcs)
    if m <= 8 and "vec" in str(vec(probe(node, info))):
        yield "vec", vec
    mixed = products(node, srcs, mixed=True)
    for name, module in (("one", mul_mat_one), ("few", mul_mat_few)):
        if mixed and all(module.takes(p, info) for p in mixed):
            yield name, by(module, mixed=True)
    for name, module in (
        ("one float", mul_mat_one_float), ("chain", mul_mat_chain), ("wide", mul_mat_wide),
        ("library", mul_mat_library),
        ("stream", mul_mat_stream), ("columns", mul_mat_columns), ("integers", mul_mat_integers),
        ("tiles", mul_mat_tiles), ("tma", mul_mat_tma), ("tma many", mul_mat_tma_many),
    ):  # fmt: skip
        if made and all(module.takes(replace(p, chunk=True), info) for p in made):
            yield name, by(module)
    for name, tile in tiles.items():
        if made and all(mul_mat_columns.takes(p, info, tile) for p in made):
            yield name, by(mul_mat_columns, tile=tile)
        if tile.depth == 1 and made and all(mul_mat_tiles.takes(p, info, tile) for p in made):
            yield f"tiles {name}", by(mul_mat_tiles, tile=tile)
    if m > 1:
        yield "parts", parts


def probe(node: Tensor, info: DeviceInfo) -> Call:
    srcs = tuple(None if s is None else Operand.of(s, 1 << 20) for s in node.srcs)
    return Call(node, Operand.of(node, 1 << 20), srcs, info, 1 << 30)


class Layer:
    """Four products, with as many copies of their weights as rotate."""

    def __init__(self, gpu: Any, kind: str, hp: Any, m: int, head: bool) -> None:
        self.gpu, self.m = gpu, m
        dtype, rng = dtype_by_name(kind), np.random.default_rng(0)
        hd, e = hp.head_dim, hp.n_embd
        n_q, n_kv = hp.n_head * hd, hp.n_head_kv * hd
        g = self.g = Graph()
        norm = g.weight("norm", F32, (e,))
        pos, rows = g.input("pos", I32, (m,)), g.input("rows", I32, (m,))
        states = [g.state(n, F16, (N_STATE, n_kv)) for n in ("keys", "values")]
        x, a, h = (g.input(n, F32, (m, w)) for n, w in (("x", e), ("a", n_q), ("h", hp.n_ff)))
        weights = {}

        def weight(name: str, n: int, k: int, t: DType = dtype) -> Tensor:
            weights[name] = g.weight(name, t, (n, k))
            return weights[name]

        rope = {"n_dims": hd, "head_dim": hd, "mode": "norm", "freq_base": ROPE_BASE, **EPS}
        qkv = weight("q", n_q, e), weight("k", n_kv, e), weight("v", n_kv, e)
        self.nodes = [
            g.op("norm_qkv_rope", x, norm, *qkv, pos, rows, *states, **rope),
            g.op("mul_mat_add", weight("o", e, n_q), a, x),
            g.op("norm_mul_mat_swiglu", x, norm, weight("gate", hp.n_ff, e),
                 weight("up", hp.n_ff, e), **EPS),
            g.op("mul_mat_add", weight("down", e, hp.n_ff), h, x),
        ]  # fmt: skip
        if head:
            self.nodes = [g.op("norm_mul_mat", x, norm, weight("head", hp.n_vocab, e), **EPS)]
        used = {s for n in self.nodes for s in n.live_srcs()}
        self.data: dict[Tensor, np.ndarray] = {
            t: rng.standard_normal(t.shape).astype(np.float32) for t in (x, a, h)
        }
        self.data[norm] = rng.uniform(0.5, 1.5, e).astype(np.float32)
        self.data[pos] = rng.integers(0, 4096, m).astype(np.int32)
        self.data[rows] = rng.permutation(N_STATE)[:m].astype(np.int32)
        for s in states:
            self.data[s] = np.zeros(s.shape, np.float16)
        self.raw = {}
        ws = [w for w in weights.values() if w in used]
        for w in ws:  # rows drawn from a few, in an order that shows a row in a wrong place
            few = shapes.random_rows(w.name, w.shape, w.dtype)
            self.raw[w] = few[rng.integers(len(few), size=w.shape[0])]
        self.fixed = {t: self._put(t, v) for t, v in self.data.items()}
        self.dst = {n: gpu.alloc(n.nbytes) for n in self.nodes}
        count = max(2, ROTATED_BYTES // sum(w.nbytes for w in ws))
        self.copies = [{w: self._put(w, self.raw[w]) for w in ws} for _ in range(count)]

    def _put(self, t: Tensor, data: np.ndarray) -> Any:
        buffer = self.gpu.alloc(t.nbytes)
        buffer.write(0, data)
        return buffer

    def calls(self, node: Tensor, scratch: int) -> list[Call]:
        info, found = self.gpu.device.info, []
        for copy in self.copies:
            at = self.fixed | copy
            srcs = tuple(None if s is None else Operand.of(s, at[s].address) for s in node.srcs)
            dst = Operand.of(node, self.dst[node].address)
            found.append(Call(node, dst, srcs, info, scratch))
        return found

    def error(self, node: Tensor) -> float:
        """Of some of the results (the queries, keys and values of norm_qkv_rope)."""
        found = self.dst[node].read(0, node.nbytes).view(np.float32).reshape(self.m, -1)
        srcs = list(node.live_srcs())
        rng = np.random.default_rng(1)

        def h_of(x: Tensor) -> np.ndarray:
            v = self.data[x].astype(np.float64)
            if not (node.op or "").startswith("norm"):
                return v
            scale = 1 / np.sqrt((v**2).mean(-1, keepdims=True) + 1e-5)
            return v * scale * self.data[srcs[1]].astype(np.float64)

        def times(w: Tensor, h: np.ndarray, rows: np.ndarray) -> np.ndarray:
            raw = np.ascontiguousarray(self.raw[w][rows])
            return h @ decode(w.dtype, raw, (len(rows), w.shape[1])).astype(np.float64).T

        def off(got: np.ndarray, y: np.ndarray) -> float:
            return float(np.abs(got - y).max() / np.sqrt((y**2).mean()))

        if node.op == "norm_qkv_rope":
            x, _, wq, wk, wv, pos, rows, *states = srcs
            h, hd, worst = h_of(x), node.shape[2], 0.0
            for w, turned, state in ((wq, 1, None), (wk, 1, states[0]), (wv, 0, states[1])):
                head = int(rng.integers(w.shape[0] // hd))
                at = np.arange(head * hd, (head + 1) * hd)
                y = times(w, h, at).astype(np.float32)
                if turned:
                    params = {n: v for n, v in node.params.items() if n not in ("eps", "head_dim")}
                    y = op_spec("rope").reference(y[:, None], self.data[pos], **params)[:, 0]
                got = found[:, at]
                if state is not None:
                    whole = self.fixed[state].read(0, state.nbytes).view(np.float16)
                    got = whole.reshape(state.shape)[self.data[rows]][:, at].astype(np.float32)
                worst = max(worst, off(got, y))
            return worst
        picked = np.unique(np.linspace(0, node.shape[1] - 1, CHECKED).astype(int))
        if node.op == "mul_mat_add":
            y = times(srcs[0], h_of(srcs[1]), picked) + self.data[srcs[2]][:, picked]
        else:
            h = h_of(srcs[0])
            y = times(srcs[2], h, picked)
            if node.op == "norm_mul_mat_swiglu":
                y = y / (1 + np.exp(-y)) * times(srcs[3], h, picked)
        return off(found[:, picked], y)

    def measure(self, makes: list[tuple[Tensor, Make]], scratch: Any) -> float:
        """Microseconds of these ops after each other."""
        gpu = self.gpu
        made = [[make(c) for c in self.calls(n, scratch.address)] for n, make in makes]
        gpu.modules.prepare(
            s.kernel for op in made for each in op for s in each if isinstance(s, Launch)
        )
        bound = [[[gpu.modules.bind(s) for s in each] for each in op] for op in made]
        stream, cp = gpu.device.stream, gpu.device.cupy
        for op in bound:
            for step in op[0]:
                step.issue()
        gpu.device.synchronize()
        stream.begin_capture()
        for i in range(len(self.copies)):
            for op in bound:
                for step in op[i]:
                    step.issue()
        graph = stream.end_capture()
        graph.launch(stream)
        begin, end, times = cp.cuda.Event(), cp.cuda.Event(), []
        for _ in range(REPLAYS):
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times.append(cp.cuda.get_elapsed_time(begin, end) * 1e3 / len(self.copies))
        return float(min(times))


def show(
    layer: Layer,
    kind: str,
    m: int,
    tiles: dict[str, mul_mat_columns.Tile],
    only: list[str] | None,
) -> None:
    gpu, info = layer.gpu, layer.gpu.device.info
    most = max(scratch_bytes(n, info) for n in layer.nodes)
    scratch = gpu.alloc(most + (1280 << 20))
    together: dict[str, list[tuple[Tensor, Make]]] = {}
    best: list[tuple[Tensor, Make]] = []
    for node in layer.nodes:
        line, least = [], (np.inf, parts)
        for name, make in ways(node, m, info, tiles):
            if only is not None and name not in only:
                continue
            layer.dst[node].write(0, np.full(node.shape, np.nan, np.float32))
            us = layer.measure([(node, make)], scratch)
            line.append(f"{name} {us:.1f} us (error {layer.error(node):.1e})")
            together.setdefault(name, []).append((node, make))
            least = min(least, (us, make), key=lambda t: t[0])
        best.append((node, least[1]))
        print(f"{kind} m={m} {node.op}: " + ", ".join(line), flush=True)
    if len(layer.nodes) > 1:
        whole = {n: o for n, o in together.items() if len(o) == len(layer.nodes)} | {"best": best}
        each = ", ".join(f"{n} {layer.measure(ops, scratch):.1f}" for n, ops in whole.items())
        print(f"{kind} m={m} layer: {each} us", flush=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--shape", default="llama3-8b")
    p.add_argument("--types", default="Q4_0,F16")
    p.add_argument("--tokens", default="1,2,4,8,16,32,64,128")
    p.add_argument("--head", action="store_true", help="the product of the vocabulary too")
    p.add_argument("--ops", default="", help="only nodes whose op contains this")
    p.add_argument("--ways", default="", help="only these ways, with commas")
    p.add_argument(
        "--tiles", default="", help="others of mul_mat_columns, columns x depth: 128x2,64x1"
    )
    args = p.parse_args()
    tiles = {t: mul_mat_columns.Tile(*map(int, t.split("x"))) for t in args.tiles.split(",") if t}
    hp, _ = shapes.SHAPES[args.shape]
    gpu = find_backend("cuda", {"equal_bits": True})  # else one column is only mul_mat_vec.cu's
    for kind in (t.lower().replace("_k", "_K") for t in args.types.split(",")):
        for m in map(int, args.tokens.split(",")):
            for head in (False, True) if args.head else (False,):
                layer = Layer(gpu, kind, hp, m, head)
                layer.nodes = [n for n in layer.nodes if args.ops in (n.op or "")]
                show(layer, kind, m, tiles, args.ways.split(",") if args.ways else None)


if __name__ == "__main__":
    main()
