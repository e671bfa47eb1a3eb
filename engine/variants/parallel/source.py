"""A model's weights in parts: each is read from the file as it is loaded, and nothing beside it."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from gguflow.engine.dataclass import replace
from gguflow.engine.load import ModelSource, RepeatedRows, WeightSource

from .cuts import Cut, Cuts, part_name


def with_parts(source: ModelSource, cuts: Cuts) -> ModelSource:
    """The model with the parts of its cut weights beside the whole ones."""
    weights = dict(source.weights)
    for name, cut in cuts.weights.items():
        for k in range(cuts.n):
            part = _part(source.weights[name], cut, k)
            weights[part.name] = part
    return replace(source, weights=weights)


def with_own_head(source: ModelSource) -> ModelSource:
    """The model with an output head of its own where the embeddings are that too: one is for the
    first device, the other for the last, in the layout that its products want."""
    name = "output.weight"
    if name in source.weights or all(spec.name != name for spec in source.arch.weights()):
        return source
    head = replace(source.weights["token_embd.weight"], name=name)
    return replace(source, weights={**source.weights, name: head})


def _part(w: WeightSource, cut: Cut, k: int) -> WeightSource:
    shape = cut.shape(w.shape, k)
    read = _repeated(w, cut, k) or partial(_read, w, cut, k)
    return replace(w, name=part_name(w.name, k), shape=shape, read=read)


def _repeated(w: WeightSource, cut: Cut, k: int) -> RepeatedRows | None:
    """A part of rows that repeat the first ones, where its own do."""
    if not isinstance(w.read, RepeatedRows) or len(w.shape) < 2:
        return None
    last, (start, stop) = len(w.shape) - 1, cut.bounds[k : k + 2]
    n_first, n_rows = w.read.n_first, prod(cut.shape(w.shape, k)[:-1])
    if cut.axis == last:
        return RepeatedRows(partial(_columns, w, start, stop), n_first, n_rows)
    inner = prod(w.shape[cut.axis + 1 : last])  # rows of one step along the axis
    whole = all(b * inner % n_first == 0 for b in (start, stop, w.shape[cut.axis]))
    return RepeatedRows(w.read.first, n_first, n_rows) if whole else None


def _columns(w: WeightSource, start: int, stop: int) -> np.ndarray:
    assert isinstance(w.read, RepeatedRows)
    first, block = w.read.first(), w.dtype.block
    blocks = first.reshape(len(first), w.shape[-1] // block, -1)
    return np.ascontiguousarray(blocks[:, start // block : stop // block]).reshape(len(first), -1)


def _read(w: WeightSource, cut: Cut, k: int) -> np.ndarray:
    """The bytes of a part, dense; rows of a matrix lie in one piece and are not copied."""
    last = len(w.shape) - 1
    unit = w.dtype.block if cut.axis == last else 1
    start, stop = (b // unit for b in cut.bounds[k : k + 2])
    # Outer dimensions, the one that is cut, and the bytes of one step along it.
    outer = prod(w.shape[: cut.axis])
    n = w.shape[cut.axis] // unit
    raw = w.read().reshape(outer, n, -1)
    return np.ascontiguousarray(raw[:, start:stop]).reshape(-1)
