"""Matrix products by cuBLASLt, through ctypes.

The plain cuBLAS binding of CuPy refuses to work while a stream is captured and cannot add a matrix
other than the result. Names and numbers below are those of cublasLt.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache, partial
from typing import Any

from gguflow.kernels.cuda.gemm import WORKSPACE_BYTES, Gemm, Matrix

from .device import CudaDevice
from .errors import CudaError

_TYPES = {"f32": 0, "f16": 2, "bf16": 14}  # cudaDataType
_COMPUTE_32F = 68
_OP_N, _OP_T = 0, 1
_DESC_TRANSA = 3
_LAYOUT_BATCH_COUNT, _LAYOUT_BATCH_STRIDE = 5, 6
_PREF_WORKSPACE, _PREF_REDUCTIONS, _PREF_ALIGNMENT_A = 1, 3, 5  # those of B, C and D follow
_CONFIG_ID, _CONFIG_PARTS = 0, 2
_MOST_CHOICES = 32
_FEW_COLUMNS = 128
_NOT_SUPPORTED = 15  # no algorithm for what is asked


class _Choice(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@cache
def _library() -> Any:
    """cuBLASLt. Raises CudaError when it is not installed."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        path = load_nvidia_dynamic_lib("cublasLt").abs_path
        return ctypes.CDLL(path)
    except (RuntimeError, OSError) as e:
        reason = str(e).splitlines()[0]
        raise CudaError(
            f"cuBLAS is not available ({reason}); install it with: pip install 'gguflow[cuda13]'"
        ) from None


def _call(name: str, *args: Any, expected: tuple[int, ...] = (0,)) -> None:
    status = getattr(_library(), name)(*args)
    if status not in expected:
        raise CudaError(f"{name} failed with status {status}")


class Cublas:
    """A cuBLASLt handle on one device. Matrix products are bound once and issued many times."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        device.use()
        self.handle = c_void_p()
        _call("cublasLtCreate", byref(self.handle))
        self._matmul = _library().cublasLtMatmul
        self._choices: dict[tuple[Any, ...], Any] = {}

    def bind(self, gemm: Gemm) -> BoundGemm:
        return BoundGemm(self, gemm)

    def choose(self, g: Gemm, operation: Any, layouts: list[Any], addresses: list[int]) -> Any:
        """The algorithm for a product: the same for equal shapes and alignments.

        A column's bits should not depend on how many there are. The library's algorithms add all
        of k in one order, whatever their tiles, except those that make parts of it: then the first
        of the same kind that makes none. Not for few columns, where tiles without parts are fewer
        than multiprocessors: decoding 64 sequences would take a sixth longer (unless `Gemm.whole`).
        """
        alignments = [_alignment(a) for a in addresses]
        key = (g.dtype, g.out, g.n, g.m, g.k, g.batch, g.w.ld, g.x.ld, g.d.ld, g.c is None,
               g.w_rows, g.whole, *alignments)  # fmt: skip
        if key not in self._choices:
            ask = partial(self._ask, g, operation, layouts, alignments)
            first = next(ask(1), None)
            if first is None:
                raise CudaError(f"cuBLAS has no algorithm for {g.dtype} {g.n} x {g.m} x {g.k}")
            if (g.whole or g.m > _FEW_COLUMNS) and _config(first, _CONFIG_PARTS) > 1:
                kind = _config(first, _CONFIG_ID)
                whole = [*ask(_MOST_CHOICES, whole=True)]
                other = whole[0] if g.whole and whole else first
                first = next((c for c in whole if _config(c, _CONFIG_ID) == kind), other)
            self._choices[key] = first
        return self._choices[key]

    def _ask(
        self, g: Gemm, operation: Any, layouts: list[Any], alignments: list[int], most: int,
        whole: bool = False,
    ) -> Iterator[Any]:  # fmt: skip
        """The library's choices, the fastest by its own estimate first. whole: no parts of k."""
        preference, found, choices = c_void_p(), c_int(), (_Choice * most)()
        _call("cublasLtMatmulPreferenceCreate", byref(preference))
        try:
            _set("MatmulPreference", preference, _PREF_WORKSPACE, c_uint64(WORKSPACE_BYTES))
            if whole:
                _set("MatmulPreference", preference, _PREF_REDUCTIONS, c_uint32(0))
            for i, nbytes in enumerate(alignments):
                _set("MatmulPreference", preference, _PREF_ALIGNMENT_A + i, c_uint32(nbytes))
            _call("cublasLtMatmulAlgoGetHeuristic", self.handle, operation, *layouts, preference,
                  most, choices, byref(found), expected=(0, _NOT_SUPPORTED))  # fmt: skip
        finally:
            _call("cublasLtMatmulPreferenceDestroy", preference)
        return iter(choices[: found.value])


def _config(choice: _Choice, attribute: int) -> int:
    """A number of an algorithm's configuration."""
    value, written = c_int32(), c_size_t()
    _call("cublasLtMatmulAlgoConfigGetAttribute", byref(choice), attribute, byref(value),
          c_size_t(4), byref(written))  # fmt: skip
    return value.value


def _set(kind: str, what: c_void_p, attribute: int, value: Any) -> None:
    name = f"cublasLt{kind}SetAttribute"
    _call(name, what, attribute, byref(value), c_size_t(ctypes.sizeof(value)))


def _alignment(address: int) -> int:
    """The largest power of two up to 256 that divides an address."""
    return min(address & -address, 256)


class BoundGemm:
    """A matrix product that only has to be issued.

    cuBLAS counts columns first: rows of k elements are the columns of a k by n matrix, so D^T (n by
    m) = w (transposed) x. Rows of n elements are the columns of an n by k matrix, and D^T = w x.
    """

    def __init__(self, cublas: Cublas, g: Gemm) -> None:
        self.gemm = g
        self._matmul = cublas._matmul
        c = g.c or g.d
        self._operation = c_void_p()
        _call("cublasLtMatmulDescCreate", byref(self._operation), _COMPUTE_32F, _TYPES["f32"])
        by_k = g.w_rows == "k"
        _set("MatmulDesc", self._operation, _DESC_TRANSA, c_int32(_OP_N if by_k else _OP_T))
        self._layouts = [
            self._layout(g.dtype, *((g.n, g.k) if by_k else (g.k, g.n)), g.w),
            self._layout(g.dtype, g.k, g.m, g.x),
            self._layout(g.out, g.n, g.m, c),
            self._layout(g.out, g.n, g.m, g.d),
        ]
        matrices = g.w, g.x, c, g.d
        choice = cublas.choose(g, self._operation, self._layouts, [m.address for m in matrices])
        alpha, beta = c_float(1), c_float(0 if g.c is None else 1)
        w, x, c_at, d = (c_void_p(m.address) for m in matrices)
        a_layout, b_layout, c_layout, d_layout = self._layouts
        self._args = (
            cublas.handle, self._operation, byref(alpha), w, a_layout, x, b_layout,
            byref(beta), c_at, c_layout, d, d_layout, byref(choice),
            c_void_p(g.workspace), c_size_t(WORKSPACE_BYTES), c_void_p(cublas.device.stream.ptr),
        )  # fmt: skip

    def _layout(self, dtype: str, rows: int, columns: int, m: Matrix) -> c_void_p:
        layout = c_void_p()
        _call("cublasLtMatrixLayoutCreate", byref(layout), _TYPES[dtype], c_uint64(rows),
              c_uint64(columns), c_int64(m.ld))  # fmt: skip
        if self.gemm.batch > 1:
            _set("MatrixLayout", layout, _LAYOUT_BATCH_COUNT, c_int32(self.gemm.batch))
            _set("MatrixLayout", layout, _LAYOUT_BATCH_STRIDE, c_int64(m.batch_stride))
        return layout

    def issue(self, to: int = 0) -> None:
        """Put it into the device's stream. to: where the result goes instead of its place; there is
        then nothing to be added."""
        args = self._args
        if to:
            result = c_void_p(to)
            args = (*args[:8], result, args[9], result, *args[11:])
        status = self._matmul(*args)
        if status != 0:
            raise CudaError(f"cublasLtMatmul failed with status {status}: {self.gemm}")

    def __del__(self) -> None:
        for layout in getattr(self, "_layouts", ()):
            _library().cublasLtMatrixLayoutDestroy(layout)
        if getattr(self, "_operation", None):
            _library().cublasLtMatmulDescDestroy(self._operation)
