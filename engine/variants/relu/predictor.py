"""Predictors in a file of their own, beside a model that has none or others.

A GGUF file of `general.type` "predictor" and the model's architecture, `relullama` say: the keys
`relullama.block_count`, `.embedding_length`, `.feed_forward_length` say what models it fits,
`predictor.model_hash` which one it was trained for, `relullama.sparse_threshold` (f32, or one a
layer) below which score a neuron is skipped. Each layer has `blk.N.fc1.weight` [rank, n_embd] and
`blk.N.fc2.weight` [n_ff, rank], under the names they have inside a model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gguflow.engine.dataclass import replace
from gguflow.engine.gguf import GgufError, GgufFile
from gguflow.engine.gguf.keys import KeyReader, described
from gguflow.engine.graph import F16, DType
from gguflow.engine.load import ModelSource, file_weight
from gguflow.engine.quants import encode
from gguflow.models.base import HParams, ModelError
from gguflow.models.relu import ReluLayers
from gguflow.models.relullama import ReluLlama

_TYPE_KEY = "general.type"
_HASH_KEY = "predictor.model_hash"
_SIZES = ("block_count", "embedding_length", "feed_forward_length")


def write_predictor(
    path: str | os.PathLike[str],
    hp: HParams,
    layers: Sequence[tuple[np.ndarray, np.ndarray]],
    threshold: float | Sequence[float],
    model_hash: str,
    dtype: DType = F16,
    arch: str = ReluLlama.name,
) -> None:
    """Write the predictors of a model's layers. arch: the model's architecture.

    layers: (fc1 float32 [rank, n_embd], fc2 float32 [n_ff, rank]) each; the rank may differ.
    threshold: for all layers or one a layer. model_hash: of `sparse.identity`. dtype: of the
    matrices; a row that it does not divide is F16. Raises ValueError for what does not fit `hp`.
    """
    from gguflow.engine.gguf import write_gguf  # with the gguf package, which a run does not need

    if len(layers) != hp.n_layer:
        raise ValueError(f"{len(layers)} predictors for {hp.n_layer} layers")
    thresholds = np.asarray(threshold, np.float32)
    metadata: dict[str, Any] = {
        "general.architecture": arch,
        _TYPE_KEY: "predictor",
        **predictor_sizes(hp, arch),
        f"{arch}.sparse_threshold": thresholds if thresholds.ndim else float(thresholds),
        _HASH_KEY: model_hash,
    }
    for i, (fc1, fc2) in enumerate(layers):
        if fc1.shape[1:] != (hp.n_embd,) or fc2.shape != (hp.n_ff, fc1.shape[0]):
            raise ValueError(
                f"layer {i}: fc1 {list(fc1.shape)} and fc2 {list(fc2.shape)}, expected "
                f"[rank, {hp.n_embd}] and [{hp.n_ff}, rank]"
            )
    write_gguf(path, metadata, predictor_tensors(layers, dtype))


def predictor_tensors(
    layers: Sequence[tuple[np.ndarray, np.ndarray]], dtype: DType
) -> Iterator[tuple[str, tuple[DType, tuple[int, ...], np.ndarray]]]:
    """(name, (type, shape, bytes)) of every matrix; rows that `dtype` does not divide are F16."""
    for i, matrices in enumerate(layers):
        for part, x in zip(("fc1", "fc2"), matrices, strict=True):
            t = dtype if x.shape[1] % dtype.block == 0 else F16
            raw = encode(t, np.ascontiguousarray(x, np.float32)).reshape(-1).view(np.uint8)
            yield f"blk.{i}.{part}.weight", (t, x.shape, raw)


def predictor_sizes(hp: HParams, arch: str) -> dict[str, int]:
    """The keys that say what models a predictor fits."""
    values = (hp.n_layer, hp.n_embd, hp.n_ff)
    return {f"{arch}.{key}": n for key, n in zip(_SIZES, values, strict=True)}


def with_predictor(
    source: ModelSource, path: str | os.PathLike[str], model_hash: str | None = None
) -> tuple[ModelSource, float | tuple[float, ...]]:
    """The model with the predictor of a file in place of its own, and the file's threshold.

    The tensors of a whole model (one of PowerInfer's, say) do as well. model_hash: of the model, to
    refuse a predictor trained for another. Raises GgufError or ModelError naming file and tensor.
    """
    if not isinstance(source.arch, ReluLayers):
        raise ModelError(
            f"{source.path}: a predictor is for models with ReLU; this one is {source.arch.name}"
        )
    hp = source.arch.hp
    f = GgufFile.open(path)
    name = f.keys.text("general.architecture", "")
    for here, expected in predictor_sizes(hp, name).items():
        found = f.keys.integer(here, None)
        if found is not None and found != expected:
            raise GgufError(f.path, f"key {here!r}", found, f"{expected} as in {source.path}")
    owner = f.keys.text(_HASH_KEY, None)
    if owner is not None and model_hash is not None and owner != model_hash:
        raise GgufError(
            f.path,
            f"key {_HASH_KEY!r}",
            owner,
            f"{model_hash}: this predictor is for another model",
        )
    weights = dict(source.weights)
    shapes: dict[str, tuple[int, ...]] = {}
    for spec in source.arch.weights():
        if not spec.name.endswith((".fc1.weight", ".fc2.weight")):
            continue
        info = f.tensors.get(spec.name)
        if info is None:
            raise ModelError(f"{f.path}: tensor {spec.name} is missing; every layer needs one")
        if not spec.fits(tuple(info.shape)):
            raise ModelError(
                f"{f.path}: tensor {spec.name} has shape {list(info.shape)}, expected "
                f"[{', '.join('any' if n == -1 else str(n) for n in spec.shape)}]"
            )
        shapes[spec.name] = tuple(info.shape)
        weights[spec.name] = file_weight(f, info)
    try:
        source.arch.check_predictors(shapes)
    except ModelError as e:
        raise ModelError(f"{f.path}: {e}") from None
    threshold = read_threshold(f.keys, name, hp.n_layer)
    return replace(source, weights=weights), threshold


def file_threshold(source: ModelSource) -> float | tuple[float, ...]:
    """The threshold in a model's file: a number, or one a layer; 0 where it says nothing. Raises
    GgufError naming the key."""
    hp = source.arch.hp
    return read_threshold(KeyReader(source.metadata, source.path), hp.arch, hp.n_layer)


def read_threshold(
    keys: KeyReader, arch: str, n_layer: int | None = None
) -> float | tuple[float, ...]:
    """`<arch>.sparse_threshold` or PowerInfer's key: a number that may be infinite, or one a layer,
    of which there are `n_layer`. Raises GgufError naming the key."""
    for key in (f"{arch}.sparse_threshold", "powerinfer.sparse_threshold"):
        value = keys.find(key)
        if value is None:
            continue
        if hasattr(value, "__len__") and not isinstance(value, str):
            values = keys.array(key, n_layer or len(value), "fiu", ", one a layer")
            assert values is not None
        else:
            values = np.asarray(value)
        if values.dtype.kind not in "fiu" or np.isnan(values).any():
            raise keys.error(key, described(value), "a number, or one a layer")
        return tuple(map(float, values)) if values.ndim else float(values)
    return 0.0
