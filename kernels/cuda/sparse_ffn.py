"""Launches sparse_ffn: a ReLU layer of which the active neurons are read; norm_sparse_ffn is that
with what stands around it in a decode step.

Few tokens, in groups: (1) gate and up of the listed rows, or up alone, (2) the sum of the listed
rows of down. Without idx the gate is computed whole, and what it leaves positive is the list; where
there is no gate, up is. Many tokens: dense products, with zeros where a token does not want a
neuron.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from types import ModuleType

from gguflow.engine.graph import F32, LEAST_POSITIVE, Role, Tensor, least_above

from . import mul_mat, mul_mat_gemm, mul_mat_sparse
from .axpy_sparse import Dense, axpy_launch, is_dense, parts_bytes
from .gemm import Gemm
from .launch import Call, DeviceInfo, Kernel, Launch, Operand, ceil_div, register
from .mul_mat_sparse import neurons_of, rows_launch, streams
from .mul_mat_vec import LEAST_SHARED, multiply_few
from .sparse import FEW, Neurons, Scratch, groups, marked

OPS = ("sparse_ffn", "norm_sparse_ffn")
# Where the operands are: the first of the three weights, x, the first of idx and what follows it.
_PLACES = {"sparse_ffn": (0, 3, 4), "norm_sparse_ffn": (2, 0, 6)}
_NORM, _R = 1, 5  # of norm_sparse_ffn
_BIAS = 7  # of sparse_ffn


def _weights(node: Tensor) -> list[Operand]:
    """Gate, if there is one, up and down."""
    first = _PLACES[node.op or ""][0]
    return [Operand.of(s, s.view_offset) for s in node.srcs[first : first + 3] if s is not None]


def _gated(node: Tensor) -> bool:
    return node.srcs[_PLACES[node.op or ""][0]] is not None


def supports(node: Tensor) -> bool:
    """norm_sparse_ffn only for few tokens, on every device: there is no other form of it."""
    if not mul_mat_sparse.supports(node):
        return False
    if node.op == "sparse_ffn":
        return True
    gate, up, down = _weights(node)
    device = DeviceInfo(shared_per_block=LEAST_SHARED, sm_count=16)
    norm, x, r = (node.srcs[i] for i in (_NORM, 0, _R))
    assert norm is not None and x is not None and r is not None
    return (
        not is_dense(down, node.shape[0], gate)
        and node.shape[0] <= FEW
        and norm.view_offset % 16 == 0
        and streams([gate, up], Operand.of(x, x.view_offset), gate.ne[1], device)
    )


@dataclass(frozen=True)
class _Dense:
    """Scratch memory of the dense form: [of down: h, ...][of gate's and up's own products][up]; the
    gate comes where h will be, and so does up where there is no gate."""

    node: Tensor
    device: DeviceInfo
    address: int = 0

    @property
    def down(self) -> Dense:
        return Dense(_weights(self.node)[-1], self.node.shape[0], self.address)

    @property
    def inner(self) -> int:
        return self.address + self.down.nbytes

    @property
    def up(self) -> int:
        own = [_way(n, self.device).scratch_bytes(n, self.device) for n in products(self.node)]
        return self.inner + ceil_div(max(own), 256) * 256

    @property
    def end(self) -> int:
        of_up = 4 * self.node.shape[0] * _weights(self.node)[0].ne[1]
        return self.up + (of_up if _gated(self.node) else 0)


def products(node: Tensor, first: int = 0, m: int = 0) -> list[Tensor]:
    """gate and up, or up, of m tokens from `first` on (0: all) as nodes of their own."""
    w, at, _ = _PLACES[node.op or ""]
    *weights, x = (s for s in (node.srcs[w], node.srcs[w + 1], node.srcs[at]) if s is not None)
    m = m or x.shape[0]
    some = Tensor("x", F32, (m, x.shape[1]), Role.INPUT, x.strides)
    return [
        Tensor("product", F32, (m, w.shape[0]), Role.NODE, op="mul_mat", srcs=(w, some))
        for w in weights
    ]


def _way(node: Tensor, device: DeviceInfo) -> ModuleType:
    """The launch file for one of many tokens' products: a library's from fewer tokens on than where
    the product stands alone, for its neighbour needs the library anyway."""
    srcs = tuple(None if s is None else Operand.of(s, 0) for s in node.srcs)
    plain = all(s is not None and not s.dtype.is_quantized for s in srcs)
    return mul_mat_gemm if plain and mul_mat_gemm.applies(node, srcs, device) else mul_mat


def _product(
    node: Tensor, to: int, w: Operand, x: Operand, device: DeviceInfo, scratch: int
) -> Call:
    return Call(node, Operand.of(node, to), (w, x), device, scratch)


def _gates_whole(node: Tensor) -> bool:
    """Whether there are no scores, so that the first product itself is computed whole."""
    at = _PLACES[node.op or ""][2]
    return node.srcs[at : at + 1] in ((), (None,))


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    first, *_, down = _weights(node)
    m, n_rows = node.shape[0], first.ne[1]
    if is_dense(down, m, first):
        return _Dense(node, device).end
    end = Scratch(0, n_rows, m).end + parts_bytes(down, m, device)
    if not _gates_whole(node):
        return end
    end = _after_gate(end, m, n_rows)
    if node.op == "norm_sparse_ffn":
        return end
    parts = (products(node, t, few)[0] for t, few in groups(m))
    return end + max((mul_mat.scratch_bytes(n, device, FEW) for n in parts), default=0)


def _after_gate(whole: int, m: int, n_rows: int) -> int:
    """Where the scratch memory of the whole gate's product lies; the gate itself is at `whole`."""
    return ceil_div(whole + 4 * min(m, FEW) * n_rows, 256) * 256


def launches(call: Call) -> list[Launch | Gemm]:
    w, _, which = _PLACES[call.node.op or ""]
    on = neurons_of(call, which, call.src(w + 1).ne[1], call.dst.ne[1])
    first = call.optional(w) or call.src(w + 1)
    many = is_dense(call.src(w + 2), on.m, first)
    return _dense(call, on) if many else _sparse(call, on)


def _sparse(call: Call, on: Neurons) -> list[Launch | Gemm]:
    w, of_x, _ = _PLACES[call.node.op or ""]
    gate, up, down, x = call.optional(w), *(call.src(i) for i in (w + 1, w + 2, of_x))
    around = call.node.op == "norm_sparse_ffn"
    norm, r = (call.src(_NORM), call.src(_R)) if around else (None, None)
    params, device, at = call.node.params, call.device, Scratch(call.scratch, on.n_rows, on.m)
    eps, cut, both = params.get("eps", 0.0), params["cut"], bool(params["relu_up"])
    parts = at.end
    whole = parts + parts_bytes(down, on.m, device)
    made: list[Launch | Gemm] = []
    for t, few in groups(on.m):
        some = x.shift(t * x.nb[1], (x.ne[0], few, 1, 1))
        dst = call.dst.shift(t * call.dst.nb[1])
        here = on.tokens(t, few)
        if on.idx is None:
            node = products(call.node, t, few)[0]
            made += _whole(call, node, whole, some, on, norm)
            found = Operand.of(node, whole)
            if gate is None:
                # Its activations are known with it, by the row: zeros where there is nothing to do.
                made.append(_relu("relu_alone", call, here, whole))
                known = Neurons(found, None, None, LEAST_POSITIVE, on.n_rows, few, True)
                first, wanted = marked(known, at.marks)
                made += [*first, axpy_launch(down, wanted, found, dst, parts, device)]
                continue
            least = least_above(cut)
            known = Neurons(found, on.bucket, on.gpu_idx, least, on.n_rows, few, True)
            first, wanted = marked(known, at.marks)
            kind, weights = "CUT_TIMES" if cut else "TIMES", [up]
        else:
            first, wanted = marked(here, at.marks)
            kind, weights = "CUT_GATED" if cut else "GATED", [up]
            if gate is None:
                kind = "ALONE"
            else:
                weights = [gate, up]
        rows = rows_launch(
            kind, weights, some, wanted, device, h=at.h, relu_up=both, norm=norm, eps=eps, cut=cut,
            bias=_bias(call),
        )  # fmt: skip
        last = axpy_launch(down, wanted, at.h, dst, parts, device, r, early=True)
        made += [*first, rows, last]
    return made


def _whole(
    call: Call, node: Tensor, to: int, x: Operand, on: Neurons, norm: Operand | None
) -> list[Launch | Gemm]:
    """The first product of some tokens, `node`, of all rows, to an address."""
    w = _PLACES[call.node.op or ""][0]
    first = call.optional(w) or call.src(w + 1)
    if norm is not None:
        eps = call.node.params["eps"]
        return [multiply_few(call.device, Operand.of(node, to), first, x, norm=norm, eps=eps)]
    own = _after_gate(to, on.m, on.n_rows)
    product = _product(node, to, first, x, call.device, own)
    return list(mul_mat.launches(product, FEW))  # rounded columns would fire other neurons


def _bias(call: Call) -> Operand | None:
    return call.optional(_BIAS) if call.node.op == "sparse_ffn" else None


def _relu(entry: str, call: Call, on: Neurons, gate: int, up: int = 0) -> Launch:
    """A kernel of sparse_ffn.cu over [m, n_rows] at address `gate`, which becomes the result."""
    params, bias = call.node.params, _bias(call)
    args = on.pack() + struct.pack(
        "@2PifP", gate, up, params["relu_up"], params["cut"], bias.address if bias else 0
    )
    runs = max(1, min(64, ceil_div(on.n_rows, 256)))
    return Launch(Kernel("sparse_ffn.cu", entry), (on.m, runs, 1), (256, 1, 1), args)


def _dense(call: Call, on: Neurons) -> list[Launch | Gemm]:
    gate, up, x = call.optional(0), call.src(1), call.src(3)
    at = _Dense(call.node, call.device, call.scratch)
    weights = [up] if gate is None else [gate, up]
    made: list[Launch | Gemm] = []
    for node, to, w in zip(products(call.node), (at.address, at.up), weights, strict=False):
        product = _product(node, to, w, x, call.device, at.inner)
        steps = list(_way(node, call.device).launches(product))
        # Both begin by rounding x.
        made += steps[1:] if made and made[0] == steps[0] else steps
    entry = "cut_gate" if call.node.params["cut"] else "relu_gate"
    if gate is None:
        made.append(_relu("relu_alone", call, on, at.address))
    else:
        made.append(_relu(entry, call, on, at.address, at.up))
    # The weights may be read through a view: the operand has the address.
    down = replace(at.down, w=call.src(2))
    return [*made, *down.launches(call.dst)]


register(OPS, launches, supports=supports, scratch_bytes=scratch_bytes)
