"""The scale searches of the K-quants, over all sub-blocks at once.

Arrays are [n, m]: n elements of each of m sub-blocks, so that a sum over a sub-block adds whole
rows in element order. `kernels/quants/search.h` is the same algorithm, operation by operation in
float32, and gives the same bytes.

Formulas: weighted least squares for x ~ scale * q - min (or scale * q) with the codes q held fixed,
over a grid of trial scales that fix the codes; the search of llama.cpp's K-quants.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gguflow.engine.dataclass import dataclass

_F = np.float32
TINY_RANGE = _F(1e-30)  # groups that span less are constant: their trial scales would overflow
TINY_GROUP = _F(1e-15)  # groups whose values are all smaller are zero (llama.cpp's threshold)


def sum_rows(n: int, row: Callable[[int], np.ndarray]) -> np.ndarray:
    """row(0) + row(1) + ... in this order, which np.sum does not promise."""
    total = np.zeros_like(row(0))
    for j in range(n):
        total += row(j)
    return total


def round_within(v: np.ndarray, lo: float, hi: float) -> np.ndarray:
    """Nearest integer, ties to even, within [lo, hi]."""
    nearest: np.ndarray = np.rint(np.clip(v, _F(lo), _F(hi)))
    return nearest


@dataclass(frozen=True)
class AffineSearch:
    """Codes 0..top; trial s divides the range of a sub-block by top + first + step * s."""

    top: float
    first: float
    step: float
    trials: int
    absolute: bool = False  # weigh |error| instead of error^2

    def __call__(self, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scales and mins [m], no min negative, with x ~ scale * q - min.

        x, w: values and the weights of their errors, float32 [n, m].
        """
        n = len(x)
        top = _F(self.top)
        high = x.max(axis=0)
        low = x.min(axis=0)
        low = np.where(low > 0, _F(0), low)
        constant = ~(high - low > TINY_RANGE)
        constant_min = -low
        sum_w = sum_rows(n, lambda j: w[j])
        sum_x = sum_rows(n, lambda j: w[j] * x[j])

        scale = _F(1) / (top / (high - low))
        q = round_within((top / (high - low)) * (x - low), 0, self.top)
        best = self._error(x, w, q, scale, low)

        for trial in range(self.trials):
            target = (_F(self.first) + _F(self.step) * _F(trial)) + top
            q = round_within((target / (high - low)) * (x - low), 0, self.top)
            wq = w * q
            wqq = wq * q
            wqx = wq * x
            sum_q = sum_rows(n, wq.__getitem__)
            sum_q2 = sum_rows(n, wqq.__getitem__)
            sum_xq = sum_rows(n, wqx.__getitem__)
            det = sum_w * sum_q2 - sum_q * sum_q
            a = (sum_w * sum_xq - sum_x * sum_q) / det
            b = (sum_q2 * sum_x - sum_q * sum_xq) / det
            positive = b > 0  # the format has no positive offset: refit without one
            a = np.where(positive, sum_xq / sum_q2, a)
            b = np.where(positive, _F(0), b)
            error = self._error(x, w, q, a, b)
            better = (det > 0) & (error < best)
            best = np.where(better, error, best)
            scale = np.where(better, a, scale)
            low = np.where(better, b, low)  # later trials start from the better offset
        return np.where(constant, _F(0), scale), np.where(constant, constant_min, -low)

    def _error(
        self, x: np.ndarray, w: np.ndarray, q: np.ndarray, a: np.ndarray, b: np.ndarray
    ) -> np.ndarray:
        diff = (a * q + b) - x
        weighted = w * (np.abs(diff) if self.absolute else diff * diff)
        return sum_rows(len(x), weighted.__getitem__)


def search_symmetric(x: np.ndarray, w: np.ndarray, top: float) -> np.ndarray:
    """Scales [m] with x ~ scale * q, q in -top..top-1, least in squared error weighted by w.

    Trials around the scale that maps the largest element to -top. x, w: float32 [n, m].
    """
    big = _largest(x)
    _, sum_xq, sum_q2 = _symmetric_sums(x, w, _F(-top) / big, top)
    scale = np.where(sum_q2 > 0, sum_xq / sum_q2, _F(0))
    best = scale * sum_xq
    for trial in range(-9, 10):
        if trial == 0:
            continue
        inverse = -(_F(top) + _F(0.1) * _F(trial)) / big
        _, sum_xq, sum_q2 = _symmetric_sums(x, w, inverse, top)
        better = (sum_q2 > 0) & (sum_xq * sum_xq > best * sum_q2)
        fit = sum_xq / sum_q2
        scale = np.where(better, fit, scale)
        best = np.where(better, fit * sum_xq, best)
    return np.where(np.abs(big) < TINY_GROUP, _F(0), scale)


def search_coordinate(x: np.ndarray, w: np.ndarray, top: float) -> np.ndarray:
    """As `search_symmetric`, for few codes, by moving one code at a time.

    Up to five rounds; a code moves to where the scale fitted to the others puts it, when that
    lowers the error.
    """
    big = _largest(x)
    q, sum_xq, sum_q2 = _symmetric_sums(x, w, _F(-top) / big, top)
    for _ in range(5):
        for j in range(len(x)):
            wx = w[j] * x[j]
            xq = sum_xq - wx * q[j]
            q2 = sum_q2 - (w[j] * q[j]) * q[j]
            usable = xq > 0
            moved = round_within((x[j] * q2) / xq, -top, top - 1)
            xq = xq + wx * moved
            q2 = q2 + (w[j] * moved) * moved
            better = usable & (moved != q[j]) & (q2 > 0)
            better &= (xq * xq) * sum_q2 > (sum_xq * sum_xq) * q2
            q[j] = np.where(better, moved, q[j])
            sum_xq = np.where(better, xq, sum_xq)
            sum_q2 = np.where(better, q2, sum_q2)
    none = (np.abs(big) < TINY_GROUP) | ~(sum_q2 > 0)
    return np.where(none, _F(0), sum_xq / sum_q2)


def _largest(x: np.ndarray) -> np.ndarray:
    big: np.ndarray = np.take_along_axis(x, np.abs(x).argmax(axis=0, keepdims=True), axis=0)
    return big.reshape(-1)


def _symmetric_sums(
    x: np.ndarray, w: np.ndarray, inverse: np.ndarray, top: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q = round_within(inverse * x, -top, top - 1)
    wxq = (w * x) * q
    wqq = (w * q) * q
    return q, sum_rows(len(x), wxq.__getitem__), sum_rows(len(x), wqq.__getitem__)
