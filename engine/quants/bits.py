"""Packing steps that several block layouts share."""

from __future__ import annotations

import numpy as np


def f16_column(x: np.ndarray) -> np.ndarray:
    """Floats [m, 1] -> their float16 bytes, uint8 [m, 2]."""
    return np.ascontiguousarray(x, np.dtype("<f2")).view(np.uint8)


def f32_column(raw: np.ndarray) -> np.ndarray:
    """Float16 bytes uint8 [m, 2] -> float32 [m, 1]."""
    return np.ascontiguousarray(raw).view(np.dtype("<f2")).astype(np.float32)


def inverse(d: np.ndarray) -> np.ndarray:
    """1/d; 0 where d is 0 or so small that the quotient would be infinite."""
    r = np.float32(1) / d
    return np.where(np.isfinite(r), r, np.float32(0))


def largest(x: np.ndarray) -> np.ndarray:
    """Of each row of [m, n] the element of largest magnitude, sign kept, as [m, 1]."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)


def least_and_most(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest element of each row of [m, n], as [m, 1].

    The first of equals, which settles the sign of a zero.
    """
    least = np.take_along_axis(x, x.argmin(axis=-1, keepdims=True), axis=-1)
    most = np.take_along_axis(x, x.argmax(axis=-1, keepdims=True), axis=-1)
    return least, most


def pack_fields(q: np.ndarray, group: int, bits: int) -> np.ndarray:
    """Codes [m, n] -> uint8 [m, n * bits / 8], whole groups of `group` bytes.

    Byte l of a group holds the codes l, l + group, l + 2 * group, ..., lowest bits first; only the
    low `bits` bits of each code are used.
    """
    per_byte = 8 // bits
    q = q.astype(np.uint8) & np.uint8((1 << bits) - 1)
    fields = q.reshape(len(q), -1, per_byte, group) << _shifts(bits)
    packed: np.ndarray = np.bitwise_or.reduce(fields, axis=2)
    return packed.reshape(len(q), -1)


def unpack_fields(raw: np.ndarray, group: int, bits: int) -> np.ndarray:
    """The inverse of `pack_fields`: uint8 [m, bytes] -> uint8 [m, bytes * 8 / bits]."""
    fields: np.ndarray = raw.reshape(len(raw), -1, 1, group) >> _shifts(bits)
    fields &= np.uint8((1 << bits) - 1)
    return fields.reshape(len(raw), -1)


def _shifts(bits: int) -> np.ndarray:
    return np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
