"""Parts of a weight as weights of their own: the rows or columns that one device keeps."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from gguflow.engine.dataclass import replace

from .source import WeightSource


def rows_of(w: WeightSource, name: str, rows: np.ndarray) -> WeightSource:
    """The rows with these ids, packed in their order; gathered when they are read."""
    return replace(
        w,
        name=name,
        shape=(len(rows), *w.shape[1:]),
        read=partial(_gather, w, rows),
        release=_nothing,
    )


def columns_of(w: WeightSource, name: str, start: int, stop: int) -> WeightSource:
    """The columns from `start` to `stop`. Raises ValueError where they do not fall on blocks of the
    element type."""
    if start % w.dtype.block or (stop - start) % w.dtype.block:
        raise ValueError(
            f"tensor {w.name}: columns {start} to {stop} cut a block of {w.dtype.block} "
            f"{w.dtype.name} values"
        )
    return replace(
        w,
        name=name,
        shape=(*w.shape[:-1], stop - start),
        read=partial(_cut, w, start, stop),
        release=_nothing,
    )


def _gather(w: WeightSource, rows: np.ndarray) -> np.ndarray:
    return w.read().reshape(prod(w.shape[:-1]), -1)[rows].reshape(-1)


def _cut(w: WeightSource, start: int, stop: int) -> np.ndarray:
    whole = w.read().reshape(prod(w.shape[:-1]), -1)
    part = whole[:, w.dtype.row_bytes(start) : w.dtype.row_bytes(stop)]
    return np.ascontiguousarray(part).reshape(-1)


def _nothing() -> None:
    """The whole weight, whose pages these are, may be in use elsewhere."""
