"""Adapters by request: factors a row, as inputs of plans, and what sequences carry of them.

A request that names factors gets them through the salt of its sequence: rows of the KV cache depend
on them, so only requests with the same ones share rows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

_MARK = b"lora"


def input_name(i: int, outputs: bool) -> str:
    """The input of adapter i's factors: one a token, or one an output."""
    return f"out.lora.{i}" if outputs else f"lora.{i}"


def salted(factors: Sequence[float] | None, salt: bytes) -> bytes:
    """The salt of a sequence with these factors of the model's adapters; None for the model's."""
    if factors is None:
        return salt if not salt.startswith(_MARK) else _MARK + struct.pack("<i", -1) + salt
    return _MARK + struct.pack(f"<i{len(factors)}f", len(factors), *factors) + salt


def factors_of(salt: bytes, default: np.ndarray) -> np.ndarray:
    """Every adapter's factor, float32, of a sequence by its salt."""
    if not salt.startswith(_MARK):
        return default
    (n,) = struct.unpack_from("<i", salt, len(_MARK))
    if n < 0:
        return default
    return np.frombuffer(salt, "<f4", n, len(_MARK) + 4)
