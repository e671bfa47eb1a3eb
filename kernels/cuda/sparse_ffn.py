"""Launches sparse_ffn: a gated ReLU layer of which the active neurons are read.

Few tokens, in groups: (1) gate and up of the listed rows, (2) the sum of the listed rows of down.
Without idx the gate is computed whole, and what it leaves positive is the list. Many tokens: dense
products, with zeros where a token does not want a neuron.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gguflow.engine.graph import F32, Role, Tensor

from . import mul_mat
from .axpy_sparse import axpy_launch, parts_bytes
from .dequantize import can_dequantize, dequantize_launch
from .gemm import WORKSPACE_BYTES, Gemm, Matrix
from .launch import Call, DeviceInfo, Kernel, Launch, Operand, ceil_div
from .mul_mat_rows import finish_launch, round_launch
from .mul_mat_sparse import neurons_of, rows_launch
from .mul_mat_sparse import supports as supports  # the same limit
from .sparse import List, Neurons, groups, marked

OPS = ("sparse_ffn",)
# Tokens up to which the active rows are read, by the type of the gate; beyond, dense products are
# faster. From bench/cuda_sparse.py.
SPARSE_TOKENS = {"f32": 8, "f16": 8, "bf16": 8, "q8_0": 16, "q4_0": 16, "q4_K": 16, "q6_K": 16}
_POSITIVE = 1.4e-45  # the least float32 above zero


def _weights(node: Tensor) -> list[Operand]:
    return [Operand.of(s, 0) for s in node.srcs[:3] if s is not None]


def _product_type(w: Operand) -> str:
    """The type in which a library multiplies by w [k, n]; "" where it cannot."""
    if w.dtype.is_quantized:
        return "bf16" if can_dequantize(w) else ""
    size = w.dtype.nbytes
    return w.dtype.name if w.nb[0] == size and w.nb[1] % size == w.address % 16 == 0 else ""


def is_dense(node: Tensor) -> bool:
    """Whether the node's tokens are so many that dense products are used."""
    gate, _, down = _weights(node)
    return node.shape[0] > SPARSE_TOKENS.get(gate.dtype.name, 8) and bool(_product_type(down))


@dataclass(frozen=True)
class _Dense:
    """Scratch memory of the dense form. inner: of the gate's and up's own products, then of down's.

    [inner][gate][up]; in inner, for down: [rounded h][a scale a row][workspace][16-bit weights]
    """

    node: Tensor
    device: DeviceInfo
    address: int = 0

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Of down's parts."""
        gate, _, down = _weights(self.node)
        m, n_rows = self.node.shape[0], gate.ne[1]
        kind = _product_type(down)
        rounded = 0 if kind == "f32" else 2 * m * n_rows
        widened = 2 * down.ne[0] * n_rows if down.dtype.is_quantized else 0
        return rounded, 4 * m, WORKSPACE_BYTES, widened

    def inner(self) -> list[int]:
        """Offsets of down's parts, and the end of them."""
        at = [0]
        for nbytes in self.sizes:
            at.append(at[-1] + ceil_div(nbytes, 256) * 256)
        return at

    @property
    def gate(self) -> int:
        own = [mul_mat.scratch_bytes(n, self.device) for n in products(self.node)]
        return self.address + ceil_div(max(*own, self.inner()[-1]), 256) * 256

    @property
    def each(self) -> int:
        return ceil_div(4 * self.node.shape[0] * _weights(self.node)[0].ne[1], 256) * 256

    @property
    def end(self) -> int:
        return self.gate + 2 * self.each


def products(node: Tensor, first: int = 0, m: int = 0) -> list[Tensor]:
    """gate and up of m tokens from `first` on (0: all) as nodes of their own."""
    *weights, x = (s for s in (node.srcs[0], node.srcs[1], node.srcs[3]) if s is not None)
    m = m or x.shape[0]
    some = Tensor("x", F32, (m, x.shape[1]), Role.INPUT, x.strides)
    return [
        Tensor("product", F32, (m, w.shape[0]), Role.NODE, op="mul_mat", srcs=(w, some))
        for w in weights
    ]


def _multiply(
    node: Tensor, to: int, w: Operand, x: Operand, device: DeviceInfo, scratch: int
) -> list[Launch | Gemm]:
    call = Call(node, Operand.of(node, to), (w, x), device, scratch)
    return list(mul_mat.launches(call))


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    if is_dense(node):
        return _Dense(node, device).end
    gate, _, down = _weights(node)
    m, n_rows = node.shape[0], gate.ne[1]
    whole_gate = 4 * min(m, 8) * n_rows if node.srcs[4:5] in ((), (None,)) else 0
    return List(0, n_rows, m).nbytes + parts_bytes(down, m, device) + whole_gate


def launches(call: Call) -> list[Launch | Gemm]:
    on = neurons_of(call, 4, call.src(0).ne[1], call.dst.ne[1])
    return _dense(call, on) if is_dense(call.node) else _sparse(call, on)


def _sparse(call: Call, on: Neurons) -> list[Launch | Gemm]:
    gate, up, down, x = (call.src(i) for i in range(4))
    device, to = call.device, List(call.scratch, on.n_rows, on.m)
    parts = call.scratch + to.nbytes
    whole = parts + parts_bytes(down, on.m, device)
    both = bool(call.node.params["relu_up"])
    made: list[Launch | Gemm] = []
    for t, few in groups(on.m):
        some = x.shift(t * x.nb[1], (x.ne[0], few, 1, 1))
        if on.idx is None:
            node = products(call.node, t, few)[0]
            made += _multiply(node, whole, gate, some, device, 0)
            known = Neurons(
                Operand.of(node, whole), on.bucket, on.gpu_idx, _POSITIVE, on.n_rows, few, True
            )
            first, wanted = marked(known, to.marks)
            rows = rows_launch("TIMES", [up], some, wanted, device, to=to, relu_up=both,
                               following=down)  # fmt: skip
        else:
            first, wanted = marked(on.tokens(t, few), to.marks)
            rows = rows_launch("GATED", [gate, up], some, wanted, device, to=to, relu_up=both,
                               following=down)  # fmt: skip
        dst = call.dst.shift(t * call.dst.nb[1])
        made += [*first, rows, axpy_launch(down, to, few, dst, parts, device)]
    return made


def _dense(call: Call, on: Neurons) -> list[Launch | Gemm]:
    gate, up, down, x = (call.src(i) for i in range(4))
    at = _Dense(call.node, call.device, call.scratch)
    of_gate, of_up = at.gate, at.gate + at.each
    first, second = (
        _multiply(node, to, w, x, call.device, call.scratch)
        for node, to, w in zip(products(call.node), (of_gate, of_up), (gate, up), strict=True)
    )
    if first[0] == second[0]:  # both begin by rounding x
        del second[0]
    made = [*first, *second]
    args = on.pack() + struct.pack("@2Pi4x", of_gate, of_up, call.node.params["relu_up"])
    runs = max(1, min(64, ceil_div(on.n_rows, 256)))
    made.append(Launch(Kernel("sparse_ffn.cu", "relu_gate"), (on.m, runs, 1), (256, 1, 1), args))

    kind = _product_type(down)
    rounded, scales, workspace, widened, _ = (call.scratch + i for i in at.inner())
    h = Operand.of(Tensor("h", F32, (on.m, on.n_rows), Role.NODE), of_gate)
    if kind != "f32":
        made.append(round_launch(kind, h, rounded, scales, None))
    size = 4 if kind == "f32" else 2
    w = Matrix(down.address, down.nb[1] // size)
    if down.dtype.is_quantized:
        made.append(dequantize_launch(down, widened, kind))
        w = Matrix(widened, down.ne[0])
    rows = Matrix(of_gate if kind == "f32" else rounded, on.n_rows)
    n, dst = down.ne[0], call.dst
    made.append(Gemm(kind, "f32", n, on.m, on.n_rows, w, rows, Matrix(dst.address, n), workspace,
                     w_rows="k"))  # fmt: skip
    if kind == "f16":
        made.append(finish_launch(dst, None, scales, False))
    return made
