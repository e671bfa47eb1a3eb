"""What the ops over a layer's active neurons share: which rows they touch, checks, test data.

A feed-forward layer has n_ff neurons. Row r of a weight belongs to neuron b(r) = gpu_bucket[r], or
r where there is no bucket. Neuron j is active for token t unless idx[t, j] < threshold (a NaN is
active; without idx all are) or gpu_idx[j] != 0, which marks neurons that another device computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, I32, Case, Operand, OpSpec, Shape, Tensor
from ._common import block_of, positive, rows_dense

TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K")
NEURONS = ("idx? f32 [m, n_ff]", "gpu_bucket? i32 [n_rows], ascending", "gpu_idx? i32 [n_ff]")


def pad_srcs(srcs: tuple[Any, ...], n: int) -> tuple[Any, ...]:
    """srcs with None for the optional ones that were left off."""
    return (*srcs, *(None,) * (n - len(srcs)))


def check_weight(spec: OpSpec, w: Tensor, name: str, *srcs: Any) -> None:
    """Raises `spec`'s ShapeError unless w is a matrix of one row a neuron."""
    if w.dtype.is_integer or len(w.shape) != 2 or not rows_dense(w) or w.shape[0] < 1:
        raise spec.fail(
            f"{name} must be [n_rows >= 1, ..] of a float or quantized type, rows dense", *srcs
        )


def check_rows(spec: OpSpec, x: Tensor, name: str, *srcs: Any) -> None:
    """Raises `spec`'s ShapeError unless x is f32 [m, ..] with dense rows."""
    if x.dtype is not F32 or len(x.shape) != 2 or not rows_dense(x):
        raise spec.fail(f"{name} must be f32 [m, ..] with dense rows", *srcs)


def check_neurons(
    spec: OpSpec, n_rows: int, m: int, n_ff: int | None, which: tuple[Any, ...], *srcs: Any
) -> int:
    """n_ff, as idx, gpu_idx, the caller (None: does not know) or else n_rows have it.

    which: idx, gpu_bucket, gpu_idx. Raises `spec`'s ShapeError when they do not agree.
    """
    idx, bucket, gpu_idx = which
    if idx is not None:
        check_rows(spec, idx, "idx", *srcs)
        if idx.shape[0] != m:
            raise spec.fail(f"idx must have one row a token, {m}", *srcs)
    for t, name in ((bucket, "gpu_bucket"), (gpu_idx, "gpu_idx")):
        if t is not None and (t.dtype is not I32 or len(t.shape) != 1 or not t.is_contiguous):
            raise spec.fail(f"{name} must be dense i32 of one dimension", *srcs)
    if bucket is not None and bucket.shape[0] != n_rows:
        raise spec.fail(f"gpu_bucket must have one entry a row, {n_rows}", *srcs)
    said = {t.shape[-1] for t in (idx, gpu_idx) if t is not None} | (
        set() if n_ff is None else {n_ff}
    )
    if len(said) > 1:
        raise spec.fail(f"the operands disagree on n_ff: {sorted(said)}", *srcs)
    n_ff = said.pop() if said else n_rows
    if n_rows > n_ff or (bucket is None and n_rows != n_ff):
        raise spec.fail(f"{n_rows} rows for {n_ff} neurons need a gpu_bucket", *srcs)
    return n_ff


def neurons_of_rows(n_rows: int, bucket: np.ndarray | None) -> np.ndarray:
    """b(r) for every row. Raises ValueError for a bucket that does not ascend from 0 or more."""
    if bucket is None:
        return np.arange(n_rows)
    if bucket[0] < 0 or (np.diff(bucket) <= 0).any():
        raise ValueError("gpu_bucket does not ascend")
    return bucket


def active_neurons(
    shape: Shape, threshold: float, idx: np.ndarray | None, gpu_idx: np.ndarray | None
) -> np.ndarray:
    """bool [m, n_ff]: what is computed here."""
    active = np.ones(shape, bool)
    if idx is not None:
        active &= ~(idx < np.float32(threshold))
    if gpu_idx is not None:
        active &= gpu_idx == 0
    return active


def relu(x: np.ndarray, cut: float) -> np.ndarray:
    """x where it is above cut, else 0; NaN stays."""
    return np.where(x <= np.float32(cut), np.float32(0), x)


# -- cases -------------------------------------------------------------------------------------


def _some_neurons(n_ff: int) -> Any:
    return lambda rng, shape: np.sort(rng.choice(n_ff, shape[0], replace=False))


def _bits(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return rng.integers(0, 2, shape)


def _with_nan(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return np.where(rng.uniform(size=shape) < 0.3, np.nan, rng.standard_normal(shape))


def _power_law(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """About a tenth of the entries positive: some columns nearly always, most hardly ever."""
    chance = np.minimum(1, 0.3 * shape[-1] ** 0.5 / (1 + np.arange(shape[-1])) ** 0.9)
    return np.where(rng.uniform(size=shape) < rng.permutation(chance), 1.0, -1.0)


def neuron_cases(make: Any) -> Iterator[Case]:
    """Cases for make(type, k, n_rows, n_ff, m, data) -> (leading operands, parameters), to which
    this adds idx, gpu_bucket, gpu_idx and the threshold. `data` draws the values, None: any."""

    def case(
        note: str, t: str, k: int, n_ff: int, m: int, idx: Any = None, bucket: int = 0,
        gpu_idx: Any = None, data: Any = None, **params: Any,
    ) -> Case:  # fmt: skip
        lead, more = make(t, k, bucket or n_ff, n_ff, m, data)
        no_idx = isinstance(idx, str)
        which: tuple[Operand | None, ...] = (
            None if no_idx else Operand((m, n_ff), data=idx),
            Operand((bucket,), "i32", _some_neurons(n_ff)) if bucket else None,
            Operand((n_ff,), "i32", gpu_idx) if gpu_idx is not None else None,
        )
        while which and which[-1] is None:
            which = which[:-1]
        params = {**more, **params}
        if not (no_idx and bucket) or gpu_idx is not None:
            params.pop("n_ff", None)
        return Case((*lead, *which), params, f"{t} {note}", 1e-7 if t == "f32" else None)

    for t in TYPES:
        block = block_of(t)
        for k, n_ff, m in ((block, 37, 1), (3 * block, 70, 2), (2 * block, 33, 101)):
            k = k if block > 1 else {37: 31, 70: 172, 33: 64}[n_ff]
            yield case(f"{n_ff} by {m}", t, k, n_ff, m)
        yield case("bucket", t, 2 * block if block > 1 else 48, 70, 1, bucket=29)
        yield case("cold half", t, 2 * block if block > 1 else 48, 70, 3, gpu_idx=_bits)
    for t in ("f32", "f16", "q4_0", "q6_K"):
        k = 2 * block_of(t) if block_of(t) > 1 else 67
        yield case("one row", t, k, 37, 1, idx=1.0, bucket=1, data=positive)
        yield case("one neuron", t, k, 1, 1, idx=0.0, data=positive)
        yield case("full bucket", t, k, 37, 2, bucket=37)
        yield case("no idx", t, k, 70, 2, idx="none")
        yield case("no idx, bucket", t, k, 70, 2, idx="none", bucket=31)
        yield case("no idx, cold half", t, k, 70, 1, idx="none", gpu_idx=_bits)
        yield case("bucket and gpu_idx", t, k, 70, 2, bucket=31, gpu_idx=_bits)
        yield case("all active", t, k, 70, 5, idx=2.0, threshold=2.0)
        yield case("none active", t, k, 70, 5, idx=-1e-30)
        yield case("none here", t, k, 70, 1, gpu_idx=1)
        yield case("NaN", t, k, 70, 2, idx=_with_nan, threshold=0.5)
        yield case("minus infinity", t, k, 70, 2, threshold=-np.inf)
        yield case("infinity", t, k, 70, 2, idx=_with_nan, threshold=np.inf)
        yield case("a tenth", t, k, 1100, 1, idx=_power_law)
        yield case("a tenth of many", t, k, 1003, 101, idx=_power_law)
        yield case("a tenth, bucket", t, k, 1003, 9, idx=_power_law, bucket=517)
