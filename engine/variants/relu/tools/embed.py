"""Putting predictors into a copy of their model's file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from gguflow.engine.gguf import GgufError, GgufFile, Typed, write_gguf
from gguflow.engine.gguf.tensors import ElementType
from gguflow.engine.graph import F16, DType
from gguflow.models.base import architectures
from gguflow.models.relu import ReluLayers

from ..predictor import predictor_tensors

Entry = tuple[str, tuple[ElementType, tuple[int, ...], np.ndarray]]


def embed_predictor(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    layers: Sequence[tuple[np.ndarray, np.ndarray]],
    threshold: float | Sequence[float],
    dtype: DType = F16,
) -> None:
    """Write the model of `path` with these predictors, and no others, to `out`.

    layers: (fc1 float32 [rank, n_embd], fc2 float32 [n_ff, rank]) each. threshold: for all layers
    or one a layer. dtype: of the predictors; a row that it does not divide is F16. Raises GgufError
    for a file that is no GGUF of ReLU: PowerInfer's say `llama`, which in GGUF means SiLU.
    """
    with GgufFile.open(path) as f:
        arch = f.keys.text("general.architecture", "")
        families = [name for name, a in architectures().items() if issubclass(a, ReluLayers)]
        if f.magic != "GGUF" or arch not in families:
            found = f"{f.magic} file of architecture {arch or None}"
            expected = f"a GGUF file of {', '.join(sorted(families))} to put predictors in"
            raise GgufError(f.path, "file", found, expected)
        metadata = f.typed_metadata()
        values = np.asarray(threshold, np.float32)
        metadata[f"{arch}.sparse_threshold"] = (
            Typed("f32", float(values)) if not values.ndim else values  # type: ignore[assignment]
        )
        write_gguf(out, metadata, [*_kept(f), *predictor_tensors(layers, dtype)], f.alignment)


def _kept(f: GgufFile) -> Iterator[Entry]:
    for info in f.tensors.values():
        if not info.name.endswith((".fc1.weight", ".fc2.weight")):
            yield info.name, (info.dtype, tuple(info.shape), f.data(info.name))
