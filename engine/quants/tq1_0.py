"""tq1_0: 256 elements in 54 bytes, 1.6875 bits an element. x = d * (q - 1), q in 0..2.

A byte holds five digits of base three as a fraction of 256, rounded up: the first digit is what
the byte times three carries out of it, the next what the rest times three does, and so on.

| bytes  | holds                                                                              |
|--------|------------------------------------------------------------------------------------|
| 0..31  | byte l: elements l, l + 32, l + 64, l + 96, l + 128                                |
| 32..47 | byte l: elements 160 + l, 176 + l, 192 + l, 208 + l, 224 + l                       |
| 48..51 | byte l: elements 240 + l, 244 + l, 248 + l, 252 + l                                |
| 52..53 | d, float16: the largest magnitude                                                  |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import F16_MAX, Codec
from .bits import f16_column, f32_column
from .tq2_0 import ternary

_RUNS = ((0, 32, 5), (32, 16, 5), (48, 4, 4))  # first byte, bytes, digits a byte
_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)


class TQ1_0(Codec):
    dtype = register_dtype(DType("tq1_0", 34, 256, 54, np.dtype("u1")))
    limit = F16_MAX

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        runs = []
        for start, n, digits in _RUNS:
            rest = blocks[:, None, start : start + n] * _POWERS[:digits, None]  # modulo 256
            runs.append((rest.astype(np.uint16) * 3 >> 8).reshape(len(blocks), -1))
        q = np.concatenate(runs, axis=-1).astype(np.int8) - np.int8(1)
        x: np.ndarray = f32_column(blocks[:, 52:54]) * q
        return x

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        d, q = ternary(x)
        parts, at = [], 0
        for _, n, digits in _RUNS:
            run = q[:, at : at + n * digits].reshape(len(q), digits, n).astype(np.uint16)
            at += n * digits
            number = (run * _POWERS[4 - np.arange(digits), None]).sum(axis=1, dtype=np.uint16)
            parts.append(((number * 256 + 242) // 243).astype(np.uint8))
        return np.concatenate([*parts, f16_column(d)], axis=-1)
