"""The same operation as an op's kernel, done by cuBLAS, CuPy or the driver, to compare speeds.

Only what computes the same values counts: quantized products, attention and the fused ops have no
rival here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gguflow.engine.backends.base import Memory, Rival
from gguflow.engine.graph import Tensor
from gguflow.engine.quants import encode
from gguflow.kernels.cuda.gemm import WORKSPACE_BYTES, Gemm, Matrix

if TYPE_CHECKING:
    from .backend import CudaBackend

_UFUNCS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "true_divide", "neg": "negative",
    "exp": "exp", "sqr": "square", "sqrt": "sqrt", "abs": "absolute", "tanh": "tanh",
}  # fmt: skip
_REDUCTIONS = {"sum": "sum", "mean": "mean", "max": "amax"}
# CuPy's own element-wise template with the function's formula, where CuPy has no function.
_FORMULAS = {
    "silu": ("T x", "y = (T)((float)x / (1.f + expf(-(float)x)))"),
    "sigmoid": ("T x", "y = (T)(1.f / (1.f + expf(-(float)x)))"),
    "relu": ("T x", "y = x > (T)0 ? x : (T)0"),
    "swiglu": ("T x, T u", "y = (T)((float)x / (1.f + expf(-(float)x)) * (float)u)"),
    "scale": ("T x, T s, T b", "y = x * s + b"),
}


def find(backend: CudaBackend, node: Tensor, memory: Memory) -> Rival | None:
    """The node's operation on the same operands, or None where no library has it."""
    if node.op == "mul_mat":
        product = _product(backend, node, memory)
        return ("cuBLAS", product) if product else None
    tensors = [node, *node.live_srcs()]
    if node.op == "cpy" and node.dtype is tensors[1].dtype and tensors[1].is_contiguous:
        return "memcpy", _copy(backend, node, tensors[1], memory)
    if any(t.dtype.is_quantized or t.dtype.name == "bf16" for t in tensors):
        return None
    cp, stream = backend.device.cupy, backend.device.stream
    out, *arrays = [_array(cp, t, memory) for t in tensors]
    call = cupy_call(cp, node, arrays, out)
    if call is None:
        return None

    def issue() -> None:
        with stream:
            call()

    return "CuPy", issue


def cupy_call(cp: Any, node: Tensor, arrays: Sequence[Any], out: Any) -> Callable[[], Any] | None:
    """The op on arrays of its operands by functions of `cp`; None where it has none."""
    op, p = node.op or "", node.params
    a = arrays[0]
    if op in _UFUNCS:
        if any(n not in (1, m) for s in arrays[1:] for n, m in _aligned(s.shape, a.shape)):
            return None  # a repeated operand, which numpy's rules do not have
        function = getattr(cp, _UFUNCS[op])
        return lambda: function(*arrays, out=out, casting="same_kind")
    if op in _REDUCTIONS:
        reduce = getattr(cp, _REDUCTIONS[op])
        return lambda: reduce(a, axis=p["axis"], out=out, keepdims=True)
    if op == "argmax":
        return lambda: cp.argmax(a, axis=p["axis"])
    if op in _FORMULAS and (op != "swiglu" or len(arrays) == 2):
        kernel = cp.ElementwiseKernel(_FORMULAS[op][0], "T y", _FORMULAS[op][1], f"rival_{op}")
        numbers = [a.dtype.type(p[name]) for name in ("s", "b")] if op == "scale" else []
        return lambda: kernel(*arrays, *numbers, out)
    if op == "clamp":
        return lambda: cp.clip(a, p["min"], p["max"], out=out)
    if op in ("cpy", "cont"):
        return lambda: cp.copyto(out, a, casting="unsafe")
    if op == "concat":
        return lambda: cp.concatenate(list(arrays), axis=p["axis"], out=out)
    if op == "get_rows" and a.dtype == out.dtype:
        return lambda: cp.take(a, arrays[1], axis=0, out=out)
    return None


def _aligned(b: Sequence[int], a: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(reversed(b), reversed(a), strict=False))


def _array(cp: Any, t: Tensor, memory: Memory) -> Any:
    """A CuPy array over a tensor's memory."""
    buffer: Any
    buffer, offset = memory.locate(t.owner)
    owned = cp.cuda.UnownedMemory(buffer.address, buffer.nbytes, buffer)
    pointer = cp.cuda.MemoryPointer(owned, offset + t.view_offset)
    return cp.ndarray(t.shape, t.dtype.storage, pointer, t.strides)


def _copy(backend: CudaBackend, to: Tensor, source: Tensor, memory: Memory) -> Callable[[], Any]:
    """The device's own copy: the bandwidth of work that writes as much as it reads."""
    runtime, stream = backend.device.runtime, backend.device.stream
    begin, end = (_address(t, memory) for t in (source, to))
    kind = runtime.memcpyDeviceToDevice
    return lambda: runtime.memcpyAsync(end, begin, to.nbytes, kind, stream.ptr)


def _product(backend: CudaBackend, node: Tensor, memory: Memory) -> Callable[[], Any] | None:
    """cuBLAS on activations that are in the weights' type already."""
    w, x = node.live_srcs()
    if w.dtype.is_quantized or len(w.shape) != 2 or len(x.shape) != 2:
        return None
    at_w, at_x, at_out = (_address(t, memory) for t in (w, x, node))
    own = [backend.alloc(WORKSPACE_BYTES)]
    if w.dtype is not x.dtype:
        values = np.random.default_rng(0).standard_normal(x.shape, np.float32)
        raw = encode(w.dtype, values)
        own.append(backend.alloc(raw.nbytes))
        own[1].write(0, raw)
        at_x = own[1].address
    (n, k), m = w.shape, x.shape[0]
    left, right, result = Matrix(at_w, k), Matrix(at_x, k), Matrix(at_out, n)
    gemm = Gemm(w.dtype.name, "f32", n, m, k, left, right, result, own[0].address)
    bound = backend.modules.bind(gemm)

    def issue(_in_use: object = own) -> None:
        bound.issue()

    return issue


def _address(t: Tensor, memory: Memory) -> int:
    buffer: Any
    buffer, offset = memory.locate(t.owner)
    return int(buffer.address) + offset + t.view_offset
