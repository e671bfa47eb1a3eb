"""float8 matrices and their scales, in a tensor beside them: one number, one of every row, or one
of every block. They become float32, some rows at a time."""

from __future__ import annotations

from math import prod

import numpy as np

from gguflow.engine.graph import F32
from gguflow.engine.quants import decode

from .checkpoint import Checkpoint, ConvertError
from .family import Weight
from .safetensors import F8, Stored

SCALES = ("_scale_inv", "_scale")  # after the matrix' name; weights are times either
# Of the inputs' rounding and of the cache's, which a GGUF file leaves to its reader.
_OF_INPUTS = (".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".q_scale")


def _values() -> np.ndarray:
    """Of every code: a sign, four bits of exponent, three of fraction; 127 is no number, and there
    are no infinities."""
    code = np.arange(128)
    exponent, fraction = code >> 3, code & 7
    small = fraction * 2.0**-9
    values = np.where(exponent == 0, small, (8 + fraction) * 2.0 ** (exponent - 10.0))
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


VALUES = _values()


def is_scale(name: str, source: Checkpoint) -> bool:
    """Whether a tensor is of a float8 matrix, or of nothing that a file has."""
    if source.quantization.kind and name.endswith(_OF_INPUTS):
        return True
    stems = (name.removesuffix(end) for end in SCALES if name.endswith(end))
    return any(s in source.tensors and source.tensors[s].dtype is F8 for s in stems)


def fp8(name: str, source: Checkpoint) -> Weight:
    """The float8 matrix `name` as float32. Raises ConvertError where its scales are missing or do
    not fit."""
    codes = source.tensors[name]
    beside = next((name + end for end in SCALES if name + end in source.tensors), None)
    if len(codes.shape) != 2 or beside is None:
        raise ConvertError(
            f"{source.path}: {name} {list(codes.shape)}: float8 that is no matrix with a tensor of "
            f"scales, {name}{SCALES[0]} or {name}{SCALES[1]}"
        )
    high, wide, scales = _blocks(beside, codes, source)
    n, k = codes.shape

    def rows(start: int, stop: int) -> np.ndarray:
        x = VALUES[codes.values()[start:stop]]
        if np.isnan(x).any():
            raise ConvertError(f"{source.path}: {name}: a value that is no number")
        each = scales[np.arange(start, stop) // high]
        x *= each if wide >= k else each[:, np.arange(k) // wide]
        return x

    return Weight(name, F32, (n, k), lambda: rows(0, n), slab=rows)


def _blocks(name: str, codes: Stored, source: Checkpoint) -> tuple[int, int, np.ndarray]:
    """Rows and columns that share a scale, and the scales, float32 [rows / .., columns / ..]."""
    (n, k), stored = codes.shape, source.tensors[name]
    shape, (high, wide) = stored.shape, source.quantization.block
    if prod(shape) == 1:
        high, wide, shape = n, k, (1, 1)
    elif shape == (n, 1):
        high, wide = 1, k
    grid = -(-n // max(high, 1)), -(-k // max(wide, 1))
    if stored.dtype.name not in ("f32", "bf16", "f16") or shape != grid:
        raise ConvertError(
            f"{source.path}: {name}: scales {stored.dtype}{list(stored.shape)} of {[n, k]}, "
            f"expected one number, one of every row, or {list(grid)} of blocks"
        )
    scales = decode(stored.dtype, stored.values(), grid)
    if not np.isfinite(scales).all():
        raise ConvertError(f"{source.path}: {name}: a scale that is no number")
    return high, wide, scales
