"""The order of sums that int8_columns.cuh describes, in numpy, to the bit: what every kernel of
quantized weights times columns gives with equal bits. Columns must become int8 without rounding
(`whole_columns`), as the kernels' division is approximate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gguflow.engine.quants.bits import f32_column, unpack_fields
from gguflow.engine.quants.q4_k import unpack_header

BLOCK, CHUNK = 32, 256


@dataclass(frozen=True)
class Blocks:
    """Weight rows. n: integers float64 [rows, blocks, 32]; s, b: of each half of a block, float32
    [rows, blocks, 2]; two: whether the halves differ; offsets: whether b is added."""

    n: np.ndarray
    s: np.ndarray
    b: np.ndarray
    two: bool = False
    offsets: bool = False


def _halves(v: np.ndarray) -> np.ndarray:
    """A number a block, or one a half of it, float32 [rows, blocks, 2]."""
    of_blocks = v.astype(np.float32)
    return np.repeat(of_blocks[..., None], 2, -1) if of_blocks.ndim == 2 else of_blocks


def _blocks(
    rows: int, n: np.ndarray, s: np.ndarray, b: np.ndarray | None = None, two: bool = False
) -> Blocks:
    n = n.astype(np.float64).reshape(rows, -1, BLOCK)
    s = _halves(s.reshape(rows, -1, 2) if two else s.reshape(rows, -1))
    b = np.zeros_like(s) if b is None else _halves(b.reshape(rows, -1))
    return Blocks(n, s, b, two, bool(b.any()))


def _q8_0(rows: int, raw: np.ndarray) -> Blocks:
    raw = raw.reshape(-1, 34)
    return _blocks(rows, raw[:, 2:].view(np.int8), f32_column(raw[:, :2]))


def _q4_0(rows: int, raw: np.ndarray) -> Blocks:
    raw = raw.reshape(-1, 18)
    n = unpack_fields(raw[:, 2:], 16, 4).astype(np.int8) - np.int8(8)
    return _blocks(rows, n, f32_column(raw[:, :2]))


def _q4_1(rows: int, raw: np.ndarray) -> Blocks:
    raw = raw.reshape(-1, 20)
    n = unpack_fields(raw[:, 4:], 16, 4)
    return _blocks(rows, n, f32_column(raw[:, :2]), f32_column(raw[:, 2:4]))


def _q4_k(rows: int, raw: np.ndarray) -> Blocks:
    raw = raw.reshape(-1, 144)
    d, scale, dmin, minimum = unpack_header(raw)
    return _blocks(rows, unpack_fields(raw[:, 16:], 32, 4), d * scale, -dmin * minimum)


def _q6_k(rows: int, raw: np.ndarray) -> Blocks:
    raw = raw.reshape(-1, 210)
    high = unpack_fields(raw[:, 128:192], 32, 2)
    n = (unpack_fields(raw[:, :128], 64, 4) | high << 4).astype(np.int8) - np.int8(32)
    return _blocks(rows, n, f32_column(raw[:, 208:210]) * raw[:, 192:208].view(np.int8), two=True)


UNPACKED: dict[str, Callable[[int, np.ndarray], Blocks]] = {
    "q8_0": _q8_0, "q4_0": _q4_0, "q4_1": _q4_1, "q4_K": _q4_k, "q6_K": _q6_k,
}  # fmt: skip


def whole_columns(m: int, k: int, seed: int = 1) -> np.ndarray:
    """float32 [m, k]: of each block whole numbers within 127, which one of them is, times a power
    of two."""
    rng = np.random.default_rng(seed)
    n = rng.normal(0, 40, (m, k // BLOCK, BLOCK)).round().clip(-127, 127)
    most = rng.integers(BLOCK, size=n.shape[:2])
    np.put_along_axis(n, most[..., None], rng.choice([-127, 127], most.shape)[..., None], -1)
    scale = 2.0 ** rng.integers(-9, -4, n.shape[:2])
    return (n * scale[..., None]).reshape(m, k).astype(np.float32)


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a b + c of float32, rounded once: the product is exact in 64 bits, and a sum that these
    round lies between two float32 but for one in 2^40."""
    wide = np.longdouble
    return np.asarray(a.astype(wide) * b.astype(wide) + c.astype(wide)).astype(np.float32)


def products(w: Blocks, x: np.ndarray) -> np.ndarray:
    """float32 [m, rows] of `whole_columns`."""
    m, k = x.shape
    v = x.reshape(m, -1, BLOCK)
    most = np.abs(v).max(-1)
    d = most * np.float32(np.float32(1) / np.float32(127))
    n = (v / (most / 127)[..., None].astype(np.float64)).round()
    assert np.array_equal(n * (most / 127)[..., None], v), "columns are rounded"
    quarter = -(-k // CHUNK // 4)
    total = quarter_sum = np.zeros((m, len(w.n)), np.float32)
    for chunk in range(k // CHUNK):
        acc = np.zeros_like(total)
        for b in range(chunk * 8, chunk * 8 + 8):
            acc = _fma(d[:, b, None], _block(w, n, b), acc)
        if chunk % quarter == 0:
            total, quarter_sum = total + quarter_sum, np.zeros_like(total)
        quarter_sum = quarter_sum + acc
    return np.asarray(total + quarter_sum)


def _block(w: Blocks, n: np.ndarray, b: int) -> np.ndarray:
    """What block b gives, without the columns' d: float32 [m, rows]."""
    halves = [
        (w.n[:, b, part] @ n[:, b, part].T).T for part in (slice(0, 16), slice(16, 32))
    ]  # exact
    sums = [n[:, b, part].sum(-1, keepdims=True) for part in (slice(0, 16), slice(16, 32))]
    (s0, s1), (b0, _) = w.s[:, b].T, w.b[:, b].T
    if w.two:
        second = (s1.astype(np.float64) * halves[1]).astype(np.float32)
        return _fma(s0, halves[0], second)
    y = (s0.astype(np.float64) * (halves[0] + halves[1])).astype(np.float32)
    return _fma(b0, sums[0] + sums[1], y) if w.offsets else y
