"""Products of a decode step of many sequences: microseconds of each way to do them.

    python bench/cuda_columns.py [--shape llama3-8b] [--types Q4_0,F16] [--tokens 4,16,64,128]
        [--head] [--tiles]

Each line is a product by itself, one after the other in one captured graph, on weights that rotate,
so that they come from memory. Ways: vec (mul_mat_vec.cu), mma (mul_mat_mma.cu), lib (a library's
product), and CxD, a tile of mul_mat_columns.cu of C columns and depth D; --tiles tries the other
tiles too. `error` is the largest difference from a product in float64, in units of the result's
root mean square. `layer` adds up q, k, v, o, gate and up, and down.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import gguflow.engine.ops  # noqa: F401  (registers the ops)
from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import F32, Graph, Tensor, dtype_by_name
from gguflow.engine.quants import decode
from gguflow.kernels.cuda import mul_mat, mul_mat_columns, mul_mat_gemm, mul_mat_mma
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.kernels.cuda.launch import Call, DeviceInfo, Launch, Operand
from gguflow.kernels.cuda.mul_mat_columns import Tile
from gguflow.models import shapes

ROTATED_BYTES = 384 << 20
REPLAYS, CHECKED = 4, 257
Make = Callable[[Call], list[Launch | Gemm]]
Way = tuple[str, int, Make]  # name, bytes of scratch memory, launches


def ways(node: Tensor, info: DeviceInfo, tiles: bool) -> Iterator[Way]:
    """Those that take the node."""
    srcs = tuple(Operand.of(s, 0) for s in node.live_srcs())
    m = node.shape[0]
    if m <= mul_mat.FEW and mul_mat._takes_few(node.op, Operand.of(node, 0), srcs, info):
        yield "vec", 0, lambda call: mul_mat.launches(call, most=mul_mat.FEW)
    if mul_mat_mma.applies(node, srcs, info):
        yield "mma", mul_mat_mma.scratch_bytes(node, info), mul_mat_mma.launches
    if mul_mat_gemm.applies(node, srcs, info):
        yield "lib", mul_mat_gemm.scratch_bytes(node, info), mul_mat_gemm.launches
    if not mul_mat_columns.applies(node, srcs, info):
        return
    own = mul_mat_columns.tile_for(m)
    tried = [own]
    if tiles:
        tried += [Tile(c, d) for c in (8, 16, 32, 64, 128) for d in (1, 2)
                  if c in (own.columns, own.columns // 2) and Tile(c, d) != own]  # fmt: skip
    for tile in tried:
        if mul_mat_columns._stages(node.live_srcs()[0].dtype, tile, info)[0] == 0:
            continue
        nbytes = mul_mat_columns.scratch_bytes(node, info, tile)
        make: Make = lambda call, tile=tile: [*mul_mat_columns.launches(call, tile)]  # noqa: E731
        yield f"{tile.columns}x{tile.depth}", nbytes, make


class Product:
    """One op with operands on the device, as many copies of its weights as rotate."""

    def __init__(self, gpu: Any, kind: str, op: str, n: int, k: int, m: int) -> None:
        self.gpu, dtype, rng = gpu, dtype_by_name(kind), np.random.default_rng(0)
        g = Graph()
        x = g.input("x", F32, (m, k))
        ws = [g.weight(f"w{i}", dtype, (n, k)) for i in range(2 if op == "mul_mat_swiglu" else 1)]
        rest = [g.input("r", F32, (m, n))] if op == "mul_mat_add" else []
        self.node = g.op(op, *ws, x, *rest)
        self.dst = gpu.alloc(self.node.nbytes)
        self.x = rng.standard_normal((m, k)).astype(np.float32)
        self.r = rng.standard_normal((m, n)).astype(np.float32)
        # Rows drawn from a few, in an order that shows a row in a wrong place.
        few = {w: shapes.random_rows(w.name, w.shape, dtype) for w in ws}
        self.raw = {w: few[w][rng.integers(len(few[w]), size=n)] for w in ws}
        given = {t: gpu.alloc(t.nbytes) for t in (x, *rest)}
        for t, v in zip((x, *rest), (self.x, self.r), strict=False):
            given[t].write(0, v)
        count = max(1, ROTATED_BYTES // sum(w.nbytes for w in ws))
        self.copies = []
        for _ in range(count):
            at = given | {w: gpu.alloc(w.nbytes) for w in ws}
            for w in ws:
                at[w].write(0, self.raw[w])
            self.copies.append(at)

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """(rows of the weights, float64 results of these)."""
        n = self.node.shape[1]
        picked = np.unique(np.linspace(0, n - 1, CHECKED).astype(int))
        ys = []
        for w, raw in self.raw.items():
            rows = np.ascontiguousarray(raw[picked])
            shape = (len(picked), w.shape[1])
            values = decode(w.dtype, rows, shape).astype(np.float64)
            ys.append(self.x.astype(np.float64) @ values.T)
        y = ys[0]
        if self.node.op == "mul_mat_swiglu":
            y = y / (1 + np.exp(-y)) * ys[1]
        if self.node.op == "mul_mat_add":
            y = y + self.r[:, picked]
        return picked, y

    def measure(self, nbytes: int, make: Make) -> tuple[float, np.ndarray]:
        """(microseconds, the result)."""
        gpu, node = self.gpu, self.node
        scratch, info = gpu.alloc(nbytes), gpu.device.info
        bound = []
        for at in self.copies:
            srcs = tuple(Operand.of(s, at[s].address) for s in node.live_srcs())
            made = make(Call(node, Operand.of(node, self.dst.address), srcs, info, scratch.address))
            gpu.modules.prepare(s.kernel for s in made if not isinstance(s, Gemm))
            bound.append([gpu.modules.bind(s) for s in made])
        self.dst.write(0, np.full(node.shape, np.nan, np.float32))
        for step in bound[0]:
            step.issue()
        gpu.device.synchronize()
        found = self.dst.read(0, node.nbytes).view(np.float32).reshape(node.shape)
        stream, cp = gpu.device.stream, gpu.device.cupy
        stream.begin_capture()
        for steps in bound:
            for step in steps:
                step.issue()
        graph = stream.end_capture()
        graph.launch(stream)
        begin, end, times = cp.cuda.Event(), cp.cuda.Event(), []
        for _ in range(REPLAYS):
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times.append(cp.cuda.get_elapsed_time(begin, end) * 1e3 / len(bound))
        return float(min(times)), found


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--shape", default="llama3-8b")
    p.add_argument("--types", default="Q4_0,F16")
    p.add_argument("--tokens", default="4,16,64,128")
    p.add_argument("--head", action="store_true", help="the product of the vocabulary too")
    p.add_argument("--tiles", action="store_true", help="other tiles of mul_mat_columns.cu")
    args = p.parse_args()
    hp, _ = shapes.SHAPES[args.shape]
    gpu = find_backend("cuda")
    kv = hp.n_head_kv * hp.head_dim
    for kind in (t.lower().replace("_k", "_K") for t in args.types.split(",")):
        for m in map(int, args.tokens.split(",")):
            sums: dict[str, float] = {}
            best = 0.0
            for op, n, k, times in (
                ("mul_mat", hp.n_head * hp.head_dim, hp.n_embd, 1),
                ("mul_mat", kv, hp.n_embd, 2),
                ("mul_mat_add", hp.n_embd, hp.n_head * hp.head_dim, 1),
                ("mul_mat_swiglu", hp.n_ff, hp.n_embd, 1),
                ("mul_mat_add", hp.n_embd, hp.n_ff, 1),
                *([("mul_mat", hp.n_vocab, hp.n_embd, 0)] if args.head else []),
            ):
                made = Product(gpu, kind, op, n, k, m)
                picked, y = made.expected()
                line, least = [], np.inf
                for name, nbytes, make in ways(made.node, gpu.device.info, args.tiles):
                    us, found = made.measure(nbytes, make)
                    error = np.abs(found[:, picked] - y).max() / np.sqrt((y**2).mean())
                    line.append(f"{name} {us:.1f} us (error {error:.1e})")
                    sums[name] = sums.get(name, 0.0) + times * us
                    least = min(least, us)
                best += times * least
                print(f"{kind} m={m} {op} {n}x{k}: " + ", ".join(line), flush=True)
            each = ", ".join(f"{name} {us:.0f}" for name, us in sums.items())
            print(f"{kind} m={m} layer: {each}; the best of each {best:.0f} us", flush=True)


if __name__ == "__main__":
    main()
