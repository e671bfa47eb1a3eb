"""mul_mat with many columns: a library's product on 16-bit rows (32-bit ones for F32 weights).

Activations are rounded to the weights' type, quantized weights become bfloat16 first. bfloat16 has
float32's range; rows that float16 cannot hold are scaled (mul_mat_rows.cu).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gguflow.engine.graph import Tensor

from .dequantize import can_dequantize, dequantize_launch
from .gemm import WORKSPACE_BYTES, Gemm, Matrix
from .launch import Call, DeviceInfo, Launch, Operand, ceil_div
from .mul_mat_rows import finish_launch, gate_launch, round_launch


@dataclass(frozen=True)
class Product:
    """One x w^T as a product of `batch` matrices.

    m: columns of a batch. w_row, w_batch: bytes between w's rows and between its batches.
    """

    dtype: str
    m: int
    n: int
    k: int
    batch: int
    w_row: int
    w_batch: int

    @property
    def rows(self) -> int:
        return self.m * self.batch


def product(w: Operand, x: Operand) -> Product | None:
    """How the library can do it, or None where these layouts are not for it."""
    k, n = w.ne[:2]
    if x.nb[0] != 4 or w.address % 16:
        return None
    if w.dtype.is_quantized:
        if not can_dequantize(w):
            return None
        return Product("bf16", x.rows, n, k, 1, 2 * k, 0)
    size, row = w.dtype.nbytes, w.nb[1]
    if w.nb[0] != size or row < k * size or row % size:
        return None
    if w.dtype.name == "f32" and not (x.is_dense and x.address % 16 == 0):
        return None
    if w.ne[2] == w.ne[3] == 1:
        return Product(w.dtype.name, x.rows, n, k, 1, row, 0)
    # Neighbouring batches of x that share one of w are one matrix: its rows follow each other.
    if w.ne[3] != x.ne[3]:
        return None
    step = w.nb[2] if w.ne[2] > 1 else w.nb[3]
    if (w.ne[2] > 1 and w.ne[3] > 1 and w.nb[3] != w.ne[2] * step) or step % size:
        return None
    m = x.ne[1] * (x.ne[2] // w.ne[2])
    return Product(w.dtype.name, m, n, k, w.ne[2] * w.ne[3], row, step)


class _Layout:
    """Scratch memory: [rounded x][a scale a row][workspace][16-bit weights][gate and up].

    The rounded x comes first, so that a launch that makes it again can be told by its bytes.
    """

    def __init__(self, p: Product, dequantized: bool, gated: bool, address: int = 0) -> None:
        self.end = address
        half = p.dtype != "f32"
        self.x = self._take(2 * p.rows * p.k if half else 0)
        self.scales = self._take(4 * p.rows if p.dtype == "f16" else 0)
        self.workspace = self._take(WORKSPACE_BYTES)
        self.w = self._take(2 * p.n * p.k if dequantized else 0)
        each = p.rows * p.n * (2 if p.dtype == "bf16" else 4) if gated else 0
        self.gate, self.up = self._take(each), self._take(each)

    def _take(self, nbytes: int) -> int:
        at = self.end
        self.end += ceil_div(nbytes, 256) * 256
        return at


def applies(node: Tensor, srcs: tuple[Operand | None, ...], device: DeviceInfo) -> bool:
    """Whether `launches` takes this node with these operands (addresses may be zero)."""
    return bool(_products(node, srcs))


def _products(node: Tensor, srcs: tuple[Operand | None, ...]) -> list[Product]:
    """The product, or gate's and up's; nothing when the library is not for them."""
    n_weights = 2 if node.op == "mul_mat_swiglu" else 1
    *weights, x = [s for s in srcs[: n_weights + 1] if s is not None]
    found = [p for p in (product(w, x) for w in weights) if p is not None]
    same = len(found) == n_weights and len({p.dtype for p in found}) == 1
    return found if same else []


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    srcs = tuple(None if s is None else Operand.of(s, 0) for s in node.srcs)
    found = _products(node, srcs)
    if not found:
        return 0
    dequantized = any(s is not None and s.dtype.is_quantized for s in srcs)
    return _Layout(found[0], dequantized, len(found) == 2).end


def rounds_to(node: Tensor, srcs: tuple[Operand | None, ...]) -> str | None:
    """The type that x becomes; None where it stays as it is."""
    dtype = _products(node, srcs)[0].dtype
    return None if dtype == "f32" else dtype


def launches(call: Call) -> list[Launch | Gemm]:
    """The launches of a node that `applies`."""
    found = _products(call.node, call.srcs)
    p, gated = found[0], len(found) == 2
    weights, x = call.srcs[: len(found)], call.src(len(found))
    dequantized = any(w is not None and w.dtype.is_quantized for w in weights)
    at = _Layout(p, dequantized, gated, call.scratch)
    scales = at.scales if p.dtype == "f16" else 0
    made: list[Launch | Gemm] = []
    if p.dtype == "f32":
        rows = Matrix(x.address, p.k, p.m * p.k)
    elif call.rounded is not None:
        scales = call.rounded.scales
        rows = Matrix(call.rounded.address, p.k, p.m * p.k)
    else:
        made.append(round_launch(p.dtype, x, at.x, at.scales, call.node.srcs[len(found)]))
        rows = Matrix(at.x, p.k, p.m * p.k)
    if gated:
        out = "bf16" if p.dtype == "bf16" else "f32"
        for i, (q, to) in enumerate(zip(found, (at.gate, at.up), strict=True)):
            made += _multiply(call.src(i), q, rows, Matrix(to, p.n), out, at)
        return [*made, gate_launch(call.dst, at.gate, at.up, out, scales)]
    r = call.optional(2)
    added = r is not None and r.ne == call.dst.ne and r.is_dense and r.address % 16 == 0
    c = Matrix(r.address, p.n, p.m * p.n) if r is not None and added else None
    row = call.dst.nb[1] // 4
    d = Matrix(call.dst.address, row, p.m * row)
    made += _multiply(call.src(0), p, rows, d, "f32", at, c)
    if scales or (r is not None and not added):
        made.append(finish_launch(call.dst, r, scales, added))
    return made


def _multiply(
    w: Operand,
    p: Product,
    x: Matrix,
    d: Matrix,
    out: str,
    at: _Layout,
    c: Matrix | None = None,
) -> list[Launch | Gemm]:
    made: list[Launch | Gemm] = []
    size = 4 if p.dtype == "f32" else 2
    rows = Matrix(w.address, p.w_row // size, p.w_batch // size)
    if w.dtype.is_quantized:
        made.append(dequantize_launch(w, at.w, p.dtype))
        rows = replace(rows, address=at.w)
    made.append(Gemm(p.dtype, out, p.n, p.m, p.k, rows, x, d, at.workspace, c, p.batch))
    return made
