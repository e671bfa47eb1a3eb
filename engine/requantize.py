"""Changing the element types of a model: in memory, or while writing a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from typing import Any, Protocol

import numpy as np

from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import DType
from gguflow.engine.loader import ModelSource, WeightSource
from gguflow.engine.quants import dequantize_any
from gguflow.models.mixes import Mix, tensor_type

Choose = Callable[[str, tuple[int, ...]], DType]


class Converter(Protocol):
    """Rows between float32 and an element type."""

    def encode(self, dtype: DType, x: np.ndarray) -> np.ndarray: ...

    def decode(self, dtype: DType, raw: np.ndarray, n: int) -> np.ndarray: ...


def native_converter(n_threads: int | None = None) -> Converter:
    """The CPU backend's quantizers."""
    backend: Any = find_backend("cpu", {"n_threads": n_threads})
    converter: Converter = backend.converter()
    return converter


def convert(
    raw: np.ndarray, source: DType | int, target: DType, shape: tuple[int, ...], by: Converter
) -> np.ndarray:
    """Bytes of a tensor in another element type; the same bytes when the types are equal.

    source: a type, or the GGUF number of one only the gguf package can read.
    """
    if isinstance(source, DType) and source == target:
        return raw
    if isinstance(source, DType):
        x = by.decode(source, raw, shape[-1])
    else:
        x = np.asarray(dequantize_any(source, raw, shape), np.float32)
    return by.encode(target, x.reshape(-1, shape[-1])).reshape(-1)


def requantize(source: ModelSource, mix: Mix, by: Converter, pure: bool = False) -> ModelSource:
    """The same model with its weights in the types of a mix, converted as they are loaded."""
    hp = source.arch.hp
    tied = "output.weight" not in source.weights
    weights: dict[str, WeightSource] = {}
    for w in source.weights.values():
        target = tensor_type(
            mix, w.name, w.shape, hp.n_layer, hp.n_head // hp.n_head_kv, tied, pure
        )

        def read(w: WeightSource = w, target: DType = target) -> np.ndarray:
            return convert(w.read(), w.dtype, target, w.shape, by)

        weights[w.name] = replace(w, dtype=target, read=read, convert=None)
    n_bytes = sum(prod(w.shape[:-1]) * w.dtype.row_bytes(w.shape[-1]) for w in weights.values())
    return replace(source, weights=weights, n_bytes=n_bytes)


def requantized_tensors(
    file: Any, choose: Choose, by: Converter
) -> Iterator[tuple[str, DType, tuple[int, ...], np.ndarray]]:
    """Every tensor of a GGUF file in the type `choose` gives it: name, type, shape, bytes."""
    for name, info in file.tensors.items():
        target = choose(name, tuple(info.shape))
        source = info.dtype if isinstance(info.dtype, DType) else info.dtype.ggml_id
        try:
            data = convert(file.data(name), source, target, tuple(info.shape), by)
        except ValueError as e:
            raise ValueError(f"{name}: {e}") from None
        yield name, target, tuple(info.shape), data
        file.advise(name, "dontneed")
