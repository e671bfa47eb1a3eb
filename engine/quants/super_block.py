"""Steps every K-quant takes: sub-blocks side by side, scales to codes, elements to codes.

A super-block has 256 elements in sub-blocks; each sub-block's scale (and minimum) is itself a code,
in units of a float16 that the super-block holds.
"""

from __future__ import annotations

import numpy as np

from .search import TINY_GROUP, TINY_RANGE, round_within, sum_rows

_F = np.float32
SUPER_BLOCK = 256


def sub_blocks(x: np.ndarray, n: int) -> np.ndarray:
    """[m, 256] -> [n, m * 256 / n]: elements of each sub-block down the first axis."""
    return np.ascontiguousarray(x.reshape(-1, n).T)


def rms(lanes: np.ndarray) -> np.ndarray:
    """Root mean square of each sub-block of [n, k], as [k]."""
    return np.sqrt(sum_rows(len(lanes), lambda j: lanes[j] * lanes[j]) / _F(len(lanes)))


def importance_weights(x: np.ndarray, importance: np.ndarray, n: int) -> np.ndarray:
    """Weights [n, k] of squared errors from an importance [m, 256] of the columns.

    Large values weigh more: the importance times sqrt(mean of x^2 over the super-block + x^2).
    """
    spread = np.sqrt((x * x).mean(axis=-1, keepdims=True, dtype=np.float32) + x * x)
    return sub_blocks(importance * spread, n)


def quantize_unsigned(v: np.ndarray, top: float) -> tuple[np.ndarray, np.ndarray]:
    """Scales or mins [m, s] -> (unit float16 [m, 1], codes uint8 [m, s] in 0..top)."""
    big = v.max(axis=-1, keepdims=True)
    big = np.where(big > 0, big, _F(0))
    inverse = np.where(big > TINY_RANGE, _F(top) / big, _F(0))
    return (big / _F(top)).astype(np.float16), round_within(inverse * v, 0, top).astype(np.uint8)


def quantize_signed(v: np.ndarray, top: float) -> tuple[np.ndarray, np.ndarray]:
    """Scales [m, s] -> (unit float16 [m, 1], codes int8 [m, s] in -top..top-1).

    The scale of largest magnitude becomes -top exactly.
    """
    big = np.take_along_axis(v, np.abs(v).argmax(axis=-1, keepdims=True), axis=-1)
    zero = np.abs(big) < TINY_GROUP
    inverse = np.where(zero, _F(0), _F(-top) / big)
    unit = np.where(zero, _F(0), _F(1) / inverse).astype(np.float16)
    return unit, round_within(inverse * v, -top, top - 1).astype(np.int8)


def quantize_elements(
    x: np.ndarray, scale: np.ndarray, minimum: np.ndarray | None, lo: float, hi: float
) -> np.ndarray:
    """round((x + min) / scale) within lo..hi, less lo. uint8 [m, 256].

    x: [m, 256]; scale, minimum: [m, s], what the decoder will compute. A zero scale decodes any
    code alike and gets the code of zero.
    """
    m, s = scale.shape
    scale = np.where(scale == 0, _F(np.inf), scale).reshape(m, s, 1)
    v = x.reshape(m, s, -1)
    if minimum is not None:
        v = v + minimum.reshape(m, s, 1)
    return (round_within(v / scale, lo, hi) - _F(lo)).astype(np.uint8).reshape(m, -1)


def dequantize_affine(
    q: np.ndarray, d: np.ndarray, scale: np.ndarray, dmin: np.ndarray, minimum: np.ndarray
) -> np.ndarray:
    """x = (d * scale) * q - dmin * min. q: [m, 256]; d, dmin: float32 [m, 1]; the codes: [m, s]."""
    m, s = scale.shape
    dl = (d * scale).reshape(m, s, 1)
    ml = (dmin * minimum).reshape(m, s, 1)
    x: np.ndarray = dl * q.reshape(m, s, -1) - ml
    return x.reshape(m, -1)


def dequantize_symmetric(q: np.ndarray, d: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """x = (d * scale) * q. q: int8 [m, 256]; d: float32 [m, 1]; scale: int8 [m, s]."""
    m, s = scale.shape
    x: np.ndarray = (d * scale).reshape(m, s, 1) * q.reshape(m, s, -1)
    return x.reshape(m, -1)
