"""Types whose four-bit codes stand for sixteen fixed values: the values, and how codes are chosen.

`kernels/quants/codebook.h` is the same, operation by operation in float32, and gives the same
bytes. Formulas: weighted least squares over a grid of trial scales (llama.cpp's search for IQ4).
"""

from __future__ import annotations

import numpy as np

from .bits import pack_fields, unpack_fields
from .search import TINY_GROUP, sum_rows

_F = np.float32

# Steps that grow away from zero: quantiles of what weights look like (IQ4_NL).
IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
# Twice the numbers of FP4 E2M1 (OCP Microscaling Formats 1.0), so that they are whole.
FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)

_TRIALS = 7  # to either side of the scale that maps the largest element to the first value


def values_of(raw: np.ndarray, table: np.ndarray, group: int = 16) -> np.ndarray:
    """uint8 [m, bytes] of codes -> their values int8 [m, 2 * bytes].

    Byte l of `group` bytes holds element l in its low half and element l + group in its high.
    """
    values: np.ndarray = table[unpack_fields(raw, group, 4)]
    return values


def pack_codes(codes: np.ndarray, group: int = 16) -> np.ndarray:
    """The inverse: codes [m, n] -> uint8 [m, n / 2]."""
    return pack_fields(codes, group, 4)


def nearest_iq4(x: np.ndarray) -> np.ndarray:
    """Code of the value of IQ4_VALUES next to each float32; of two as near, the greater."""
    above = np.searchsorted(IQ4_VALUES.astype(_F), x, side="right").clip(1, 15)
    low, high = (IQ4_VALUES.astype(_F)[above - i] for i in (1, 0))
    codes: np.ndarray = above - (x - low < high - x)
    return codes.astype(np.uint8)


def nearest_fp4(x: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Code k with d * FP4_VALUES[k] next to x [m, n], the first of equals; d: float32 [m, 1]."""
    best = np.zeros(x.shape, np.uint8)
    least = np.abs(_F(0) * d - x)
    for code in range(1, 16):
        error = np.abs(_F(FP4_VALUES[code]) * d - x)
        better = error < least
        best, least = np.where(better, np.uint8(code), best), np.where(better, error, least)
    return best


def iq4_weights(x: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """Weights [m, n] of squared errors of whole blocks [m, n] under an importance of the columns:
    large values weigh more."""
    n = x.shape[-1]
    spread = sum_rows(n, lambda j: x[:, j] * x[:, j]) * (_F(2) / _F(n))
    weights: np.ndarray = importance * np.sqrt(spread[:, None] + x * x)
    return weights


def search_iq4(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Scales [m] with x ~ scale * value, least in squared error weighted by w. Both [n, m]."""
    largest = np.abs(x).argmax(axis=0)
    most = np.take_along_axis(x, largest[None], axis=0)[0]

    def sums(inverse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q = IQ4_VALUES[nearest_iq4(inverse * x)].astype(_F)
        wq = w * q
        return sum_rows(len(x), (wq * x).__getitem__), sum_rows(len(x), (wq * q).__getitem__)

    sum_qx, sum_q2 = sums(_F(1) / (-most / _F(IQ4_VALUES[0])))
    scale = np.where(sum_q2 > 0, sum_qx / sum_q2, _F(0))
    best = scale * sum_qx
    for trial in range(-_TRIALS, _TRIALS + 1):
        sum_qx, sum_q2 = sums(_F(trial + int(IQ4_VALUES[0])) / most)
        better = (sum_q2 > 0) & (sum_qx * sum_qx > best * sum_q2)
        fit = sum_qx / sum_q2
        scale, best = np.where(better, fit, scale), np.where(better, fit * sum_qx, best)
    return np.where(np.abs(most) < TINY_GROUP, _F(0), scale)
