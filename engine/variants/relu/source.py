"""A model's weights as the sparse forms need them: a predictor from another file, the down matrix
with one row a neuron, the rows that a device keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import F16, I32, DType, dtype_by_name
from gguflow.engine.load import ModelSource, WeightSource, rows_of
from gguflow.engine.requantize import Converter, native_converter
from gguflow.models.base import ModelError

from .layers import FFN_PARTS
from .split import NeuronSplit

# The element types that the sparse ops have native kernels for.
SPARSE_TYPES = frozenset(("f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K"))


def missing_predictor(source: ModelSource) -> str | None:
    """The first predictor tensor that a model lacks, None when every layer has its predictor."""
    names = (f"blk.{i}.{p}.weight" for i in range(source.arch.hp.n_layer) for p in ("fc1", "fc2"))
    return next((n for n in names if n not in source.weights), None)


def with_neuron_rows(source: ModelSource, dense: bool = False) -> ModelSource:
    """The model with the matrices of its layers in one row a neuron, of types that the sparse
    ops compute with. What has to be converted is, as it is loaded, and the notes say so.

    dense: only what the dense form runs by a sparse op, a down matrix that is transposed already.
    """
    weights = dict(source.weights)
    changed: dict[str, int] = {}

    def change(name: str, new: WeightSource, what: str) -> None:
        weights[name] = new
        changed[what] = changed.get(what, 0) + 1

    for i in range(source.arch.hp.n_layer):
        for part in FFN_PARTS[-1:] if dense else FFN_PARTS:
            name, down = f"blk.{i}.{part}.weight", None
            if part == "ffn_down_t" and not dense:
                down = weights.pop(f"blk.{i}.ffn_down.weight", None)
            w = weights.get(name, down)
            if w is None or (down is None and w.dtype.name in SPARSE_TYPES):
                continue
            n = w.shape[0] if down is not None else w.shape[1]
            target = _sparse_type(w.dtype, n)
            lossy = f" (again quantized, as {target.name})" if w.dtype.is_quantized else ""
            if down is not None:
                change(name, _transposed(down, name, target), f"ffn_down, transposed{lossy}")
            else:
                change(name, _converted(w, target), f"{w.dtype.name} of the sparse layers{lossy}")
    notes = [f"{n} tensors are converted while loading: {what}" for what, n in changed.items()]
    return replace(source, weights=weights, notes=(*source.notes, *notes))


def _sparse_type(dtype: DType, n: int) -> DType:
    """The type for rows of `n` that were of `dtype`: the same where it can be, else one that keeps
    what the other held."""
    if dtype.name in SPARSE_TYPES and n % dtype.block == 0:
        return dtype
    return dtype_by_name("q8_0") if n % 32 == 0 else F16


def _transposed(w: WeightSource, name: str, target: DType) -> WeightSource:
    def read() -> np.ndarray:
        rows, cols = w.shape
        if w.dtype.block == 1 and w.dtype == target:
            turned = w.read().view(w.dtype.storage).reshape(rows, cols).T
            return np.ascontiguousarray(turned).reshape(-1).view(np.uint8)
        return _encode(w, target, lambda x: np.ascontiguousarray(x.T))

    return replace(w, name=name, shape=w.shape[::-1], dtype=target, read=_once(w, read))


def _converted(w: WeightSource, target: DType) -> WeightSource:
    return replace(w, dtype=target, read=_once(w, partial(_encode, w, target, lambda x: x)))


def _once(w: WeightSource, read: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
    """`read`, after which the source's pages are let go."""

    def then_release() -> np.ndarray:
        out = read()
        w.release()
        return out

    return then_release


@cache
def _converter() -> Converter:
    return native_converter()


def _encode(w: WeightSource, target: DType, turn: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    by = _converter()
    try:
        return by.encode(target, turn(by.decode(w.dtype, w.read(), w.shape[1]))).reshape(-1)
    except ValueError as e:
        raise ModelError(f"tensor {w.name}: {e}") from None


def with_hot_rows(source: ModelSource, split: NeuronSplit) -> ModelSource:
    """The model with the packed rows of the split's neurons beside the whole matrices, gathered
    when they are loaded, and with the lists that say whose rows they are."""
    weights = dict(source.weights)
    for i, bucket in enumerate(split.buckets):
        if not 0 < bucket.size < split.n_ff:
            continue
        for part in FFN_PARTS:
            if (whole := weights.get(f"blk.{i}.{part}.weight")) is not None:
                hot = f"blk.{i}.{part}.hot"
                weights[hot] = rows_of(whole, hot, bucket)
        if (bias := weights.get(f"blk.{i}.ffn_up.bias")) is not None:
            # Both halves look theirs up by neuron.
            weights[f"{bias.name}.hot"] = replace(bias, name=f"{bias.name}.hot")
        for name, ids in (("gpu_bucket", bucket), ("gpu_idx", split.gpu_idx(i))):
            full = f"blk.{i}.{name}"
            read = partial(_raw, ids)
            weights[full] = WeightSource(full, I32, ids.shape, read, lambda: None)
    return replace(source, weights=weights)


def _raw(ids: np.ndarray) -> np.ndarray:
    return ids.view(np.uint8)
