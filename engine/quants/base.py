"""Codec: how one element type is written and read, in numpy. The oracle of the native kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import ClassVar

import numpy as np

from ..graph import DType, dtype_by_name

F16_MAX = 65504.0  # largest float16: a block's scale and minimum are stored in that type
_CHUNK = 1 << 18  # elements converted at a time, so that temporaries stay small


class Codec:
    """One element type. Subclassing with a `dtype` registers the codec.

    A subclass gives `unpack` and `pack`; one that is not `writable`, `unpack` alone.
    limit: largest magnitude that can be quantized; beyond it a block's float16 scale overflows.
    """

    dtype: ClassVar[DType]
    limit: ClassVar[float] = inf
    weighted: ClassVar[bool] = False  # `pack` can weigh errors by importance
    writable: ClassVar[bool] = True  # there is a `pack`

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        """uint8 [m, block bytes] -> float32 [m, block]."""
        raise NotImplementedError

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        """float32 [m, block] -> uint8 [m, block bytes]. `importance` has the shape of `x`."""
        raise NotImplementedError

    def dequantize(self, raw: np.ndarray) -> np.ndarray:
        """uint8 [..., row bytes] -> float32 [..., n]. Raises ValueError if a block is split."""
        dt = self.dtype
        raw = np.ascontiguousarray(raw)
        if raw.dtype != np.uint8 or raw.ndim == 0 or raw.shape[-1] % dt.nbytes:
            raise ValueError(
                f"{dt.name}: rows of {raw.dtype}{list(raw.shape)} are no whole blocks of "
                f"{dt.nbytes} bytes"
            )
        blocks = raw.reshape(-1, dt.nbytes)
        out = np.empty((len(blocks), dt.block), np.float32)
        step = max(1, _CHUNK // dt.block)
        with np.errstate(invalid="ignore", over="ignore"):  # a file may hold infinite scales
            for i in range(0, len(blocks), step):
                out[i : i + step] = self.unpack(blocks[i : i + step])
        return out.reshape(*raw.shape[:-1], raw.shape[-1] // dt.nbytes * dt.block)

    def quantize(self, x: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
        """Floats [..., n] -> uint8 [..., row bytes].

        importance: float [n], a weight a column for the squared errors (an importance matrix).
        Raises ValueError naming the type for a split block and for a value that is NaN, infinite or
        beyond `limit`, with its position; NotImplementedError if the type has no quantizer or no
        weighting.
        """
        dt = self.dtype
        if not self.writable:
            raise NotImplementedError(f"{dt.name}: there is no quantizer for this type")
        x = np.ascontiguousarray(x, np.float32)
        if x.ndim == 0:
            raise ValueError(f"{dt.name}: a row is needed, not a single number")
        row_bytes = dt.row_bytes(x.shape[-1])
        weights = self._importance_blocks(x.shape[-1], importance)
        blocks = x.reshape(-1, dt.block)
        out = np.empty((len(blocks), dt.nbytes), np.uint8)
        step = max(1, _CHUNK // dt.block)
        for i in range(0, len(blocks), step):
            part = blocks[i : i + step]
            if dt.is_quantized:
                self._check_values(x, part, i * dt.block)
            w = None if weights is None else weights[np.arange(i, i + len(part)) % len(weights)]
            # 1/0 and overflow appear on the way in blocks of zeros and are selected away.
            with np.errstate(all="ignore"):
                out[i : i + step] = self.pack(part, w)
        return out.reshape(*x.shape[:-1], row_bytes)

    def _importance_blocks(self, n: int, importance: np.ndarray | None) -> np.ndarray | None:
        if importance is None:
            return None
        name = self.dtype.name
        if not self.weighted:
            raise NotImplementedError(f"{name}: the quantizer takes no importance")
        w = np.ascontiguousarray(importance, np.float32)
        if w.shape != (n,):
            raise ValueError(f"{name}: importance of shape {list(w.shape)} for rows of {n}")
        if not (np.isfinite(w).all() and (w >= 0).all()):
            raise ValueError(f"{name}: importance must be finite and not negative")
        return w.reshape(-1, self.dtype.block)

    def _check_values(self, x: np.ndarray, part: np.ndarray, start: int) -> None:
        good = np.abs(part) <= self.limit  # false for NaN
        if good.all():
            return
        at = np.unravel_index(start + int(np.argmin(good)), x.shape)
        where = ", ".join(str(int(i)) for i in at)
        raise ValueError(
            f"{self.dtype.name}: element [{where}] is {x[at]}; values must be finite and at most "
            f"{self.limit:g} in magnitude"
        )

    def __init_subclass__(cls) -> None:
        if "dtype" in cls.__dict__:
            if cls.dtype.name in _CODECS:
                raise ValueError(f"codec {cls.dtype.name} is defined twice")
            _CODECS[cls.dtype.name] = cls()


_CODECS: dict[str, Codec] = {}


def codec(dtype: DType | str) -> Codec:
    """The codec of a type. Raises KeyError for an unknown name or a type that holds no floats."""
    dt = dtype_by_name(dtype) if isinstance(dtype, str) else dtype
    if dt.name not in _CODECS:
        raise KeyError(f"no codec for {dt.name}; known: {', '.join(sorted(_CODECS))}")
    return _CODECS[dt.name]


def all_codecs() -> list[Codec]:
    """Every codec, by GGUF id."""
    return sorted(_CODECS.values(), key=lambda c: c.dtype.ggml_id)


def decode(dtype: DType | str, raw: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """A buffer of dense rows -> float32 of `shape`. Integer types come back as they are.

    raw: an array of any type, read as bytes. Raises ValueError if its size does not fit `shape`.
    """
    dt = dtype_by_name(dtype) if isinstance(dtype, str) else dtype
    buffer = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    row_bytes = dt.row_bytes(shape[-1]) if shape else dt.nbytes
    expected = prod(shape[:-1]) * row_bytes
    if buffer.size != expected:
        raise ValueError(
            f"{dt.name}: {buffer.size} bytes for shape {list(shape)}, which takes {expected}"
        )
    if dt.is_integer:
        return buffer.view(dt.storage).reshape(shape)
    return codec(dt).dequantize(buffer.reshape(*shape[:-1], row_bytes)).reshape(shape)


def encode(
    dtype: DType | str, array: np.ndarray, importance: np.ndarray | None = None
) -> np.ndarray:
    """Values [..., n] in the type's storage: uint8 [..., row bytes] if quantized, else [..., n].

    Raises as `Codec.quantize` does.
    """
    dt = dtype_by_name(dtype) if isinstance(dtype, str) else dtype
    if dt.is_integer:
        return np.ascontiguousarray(array, dt.storage)
    raw = codec(dt).quantize(np.atleast_1d(array), importance).view(dt.storage)
    return raw if dt.is_quantized else raw.reshape(np.shape(array))
