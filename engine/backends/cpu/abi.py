"""ctypes mirror of kernels/cpu/abi.h, field by field: structures and their fill-in only."""

from __future__ import annotations

import ctypes

from gguflow.engine.graph import Tensor

ABI_VERSION = 3
MAX_DIMS = 4
MAX_SRC = 8
PARAM_BYTES = 64
GF_PACKED = 1

Dims = ctypes.c_int64 * MAX_DIMS


class AbiError(ValueError):
    """An op that its record does not hold: names it and the limit."""


class GfTensor(ctypes.Structure):
    """A tensor operand: ggml's ne and nb, innermost dimension first."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("ne", Dims),
        ("nb", Dims),
        ("type", ctypes.c_int32),
        ("flags", ctypes.c_int32),
    ]


class GfOp(ctypes.Structure):
    """One record of the program the executor runs. Functions are addresses, 0 where absent."""

    _fields_ = [
        ("fn", ctypes.c_void_p),
        ("init", ctypes.c_void_p),
        ("scratch", ctypes.c_int64),
        ("n_src", ctypes.c_int32),
        ("max_threads", ctypes.c_int32),
        ("dst", GfTensor),
        ("src", GfTensor * MAX_SRC),
        ("params", ctypes.c_ubyte * PARAM_BYTES),
    ]


def tensor_record(tensor: Tensor, address: int, flags: int = 0) -> GfTensor:
    """The operand record of `tensor`, whose first byte lies at `address`."""
    ne, nb = tensor.ne_nb()
    return GfTensor(address, Dims(*ne), Dims(*nb), tensor.dtype.ggml_id, flags)
