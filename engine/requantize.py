"""Changing the element types of a loaded model: every weight converted as it is read."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from gguflow.engine.backends.base import Converter, find_backend
from gguflow.engine.dataclass import replace
from gguflow.engine.graph import F16, DType
from gguflow.engine.load import ModelSource, WeightSource
from gguflow.engine.pool import Pool
from gguflow.engine.quants import dequantize_any, encode
from gguflow.models.base import ModelError
from gguflow.models.mixes import Mix, tensor_type

SLAB_BYTES = 32 << 20  # of float32 values converted at a time
# Elements a thread converts at a time. Larger slabs are little faster, and a conversion that is
# given up ends after the slabs in work: a tenth of a second each with the slowest search.
WEIGHTED_SLAB = 1 << 17


def native_converter(n_threads: int | None = None) -> Converter:
    """The CPU backend's quantizers, on `n_threads` threads (by default all processors)."""
    backend = find_backend("cpu", {"n_threads": n_threads})
    assert backend.converter is not None
    return backend.converter()


def convert(
    raw: np.ndarray, source: DType | int, target: DType, shape: tuple[int, ...], by: Converter
) -> Iterator[np.ndarray]:
    """A tensor's bytes in another element type: uint8 pieces of whole rows, in order.

    raw: uint8 bytes. source: a type, or the GGUF number of one that only the gguf package reads.
    Raises ValueError for values the target cannot hold.
    """
    n, rows = shape[-1], prod(shape[:-1])
    row_bytes = raw.size // rows
    step = max(1, SLAB_BYTES // (4 * n))
    for r in range(0, rows, step):
        part = raw[r * row_bytes : min(r + step, rows) * row_bytes]
        if isinstance(source, DType):
            x = by.decode(source, part, n)
        else:
            x = dequantize_any(source, part, (part.size // row_bytes, n))
        out = by.encode(target, x).reshape(-1)
        if target == F16 and not np.isfinite(out.view(np.float16)).all():
            raise ValueError("f16: a value is NaN, infinite or beyond 65504")
        yield out


def convert_weighted(
    raw: np.ndarray,
    source: DType | int,
    target: DType,
    shape: tuple[int, ...],
    by: Converter,
    weights: np.ndarray,
) -> Iterator[np.ndarray]:
    """`convert` with errors weighed by column, by the numpy quantizers on all processors.

    weights: float32 [matrices, k] of the shape's matrices, or [1, k] for all of them.
    """
    n, matrices = shape[-1], prod(shape[:-2])
    n_rows = prod(shape[:-1]) // matrices
    per_matrix, row_bytes = raw.size // matrices, raw.size // prod(shape[:-1])
    step = max(1, WEIGHTED_SLAB // n)

    def quantized(at: tuple[int, int]) -> np.ndarray:
        m, r = at
        end = min(r + step, n_rows)
        part = raw[m * per_matrix + r * row_bytes : m * per_matrix + end * row_bytes]
        if isinstance(source, DType):
            x = by.decode(source, part, n)
        else:
            x = dequantize_any(source, part, (end - r, n))
        return encode(target, x, weights[m % len(weights)]).reshape(-1)

    slabs = [(m, r) for m in range(matrices) for r in range(0, n_rows, step)]
    with Pool() as threads:  # no more, or slabs take turns and last
        yield from threads.map(quantized, slabs)


def requantize(source: ModelSource, mix: Mix, by: Converter, pure: bool = False) -> ModelSource:
    """The same model with its weights in the types of a mix, converted as they are loaded.

    pure: the mix's base type for every matrix.
    """
    hp = source.arch.hp
    tied = "output.weight" not in source.weights
    weights: dict[str, WeightSource] = {}
    for w in source.weights.values():
        target = tensor_type(
            mix, w.name, w.shape, hp.n_layer, hp.n_head // hp.n_head_kv, tied, pure
        )
        if target != w.dtype:
            weights[w.name] = _converted(w, target, by)
        else:
            weights[w.name] = w
    n_bytes = sum(w.nbytes for w in weights.values())
    return replace(source, weights=weights, n_bytes=n_bytes)


def _converted(w: WeightSource, target: DType, by: Converter) -> WeightSource:
    def read() -> np.ndarray:
        out = np.empty(target.array_bytes(w.shape), np.uint8)
        at = 0
        try:
            for part in convert(w.read(), w.dtype, target, w.shape, by):
                out[at : at + part.size] = part
                at += part.size
        except ValueError as e:
            raise ModelError(f"tensor {w.name}: {e}") from None
        w.release()
        return out

    return replace(w, dtype=target, read=read, release=lambda: None, convert=None)
