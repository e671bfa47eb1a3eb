"""What a check says, and the measure that numbers are held to."""

from __future__ import annotations

import numpy as np

from gguflow.engine.dataclass import dataclass


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ok: None for what is only told."""

    name: str
    ok: bool | None
    text: str


def nmse(actual: np.ndarray, expected: np.ndarray) -> float:
    """Mean squared error over the mean square of `expected`; infinite when they cannot agree.

    NaN and infinities must be the same in both, and then do not count.
    """
    if actual.shape != expected.shape:
        return np.inf
    a, e = actual.astype(np.float64).reshape(-1), expected.astype(np.float64).reshape(-1)
    finite = np.isfinite(e)
    if not finite.all():
        if not np.array_equal(a[~finite], e[~finite], equal_nan=True):
            return np.inf
        a, e = a[finite], e[finite]
    if not np.isfinite(a).all():
        return np.inf
    with np.errstate(over="ignore"):
        error, power = float(np.sum((a - e) ** 2)), float(np.sum(e**2))
    return 0.0 if error == 0 else error / power if power > 0 else np.inf


def n_not_finite(x: np.ndarray) -> int:
    """How many values are NaN or infinite."""
    return 0 if x.dtype.kind == "i" else int(x.size - np.count_nonzero(np.isfinite(x)))
