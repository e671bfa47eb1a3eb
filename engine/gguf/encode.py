"""Encodes metadata values as GGUF stores them, little-endian.

A value that cannot be encoded is a ValueError or TypeError that says what was found.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import show
from .strings import StringArray
from .values import ARRAY, SCALAR_BY_NAME, STRING, ScalarType, Typed

_NUMPY_KINDS = {t.numpy: t.name for t in SCALAR_BY_NAME.values()}


def infer_kind(value: Any) -> str:
    """The kind a bare Python value is written as.

    int: u32, i32 when negative, 64 bits when it must; float: f32; numpy values: their own type.
    Lists follow llama.cpp's converters: i32 (or i64), f32, bool, str.
    """
    if isinstance(value, (str, bytes)):
        return "str"
    if isinstance(value, StringArray):
        return "arr[str]"
    if isinstance(value, (np.generic, np.ndarray)):
        kind = _NUMPY_KINDS.get(f"{value.dtype.kind}{value.dtype.itemsize}")
        if kind is None:
            raise TypeError(f"numpy type {value.dtype} has no GGUF type")
        return f"arr[{kind}]" if isinstance(value, np.ndarray) else kind
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        if value < 0:
            return "i32" if value >= -(1 << 31) else "i64"
        return "u32" if value < 1 << 32 else "u64"
    if isinstance(value, float):
        return "f32"
    if isinstance(value, (list, tuple)):
        return f"arr[{_infer_element(value)}]"
    raise TypeError(f"a value of type {type(value).__name__} has no GGUF type")


def _infer_element(values: Sequence[Any]) -> str:
    if not values:
        raise TypeError("an empty list has no element type; use Typed('arr[...]', [])")
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        return "i32" if all(-(1 << 31) <= v < 1 << 31 for v in values) else "i64"
    kinds = {infer_kind(v) for v in values}
    if len(kinds) > 1:
        raise TypeError(f"a list of {' and '.join(sorted(kinds))}")
    return kinds.pop()


def encode(value: Any) -> tuple[int, bytes]:
    """The GGUF type number of a value, bare or Typed, and its bytes."""
    if not isinstance(value, Typed):
        value = Typed(infer_kind(value), value)
    return _type_id(value.kind), _encode(value.kind, value.value)


def _type_id(kind: str) -> int:
    if kind == "arr" or (kind.startswith("arr[") and kind.endswith("]")):
        return ARRAY
    if kind == "str":
        return STRING
    if kind not in SCALAR_BY_NAME:
        raise TypeError(
            f"no such kind {show(kind)}; use {', '.join(SCALAR_BY_NAME)}, str or arr[...]"
        )
    return SCALAR_BY_NAME[kind].id


def _encode(kind: str, value: Any) -> bytes:
    type_id = _type_id(kind)
    if type_id == ARRAY:
        return _encode_array(kind[4:-1], value)
    if type_id == STRING:
        return encode_string(value)
    t = SCALAR_BY_NAME[kind]
    return _numbers(t, (value,))


def encode_string(value: str | bytes) -> bytes:
    """Length as u64, then UTF-8; surrogate escapes become the bytes they stand for."""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    elif not isinstance(value, bytes):
        raise TypeError(show(value))
    return struct.pack("<Q", len(value)) + value


def _encode_array(element: str, values: Any) -> bytes:
    """Element type, count, elements. `element` is empty for an array type left unsaid."""
    if not element:
        raise TypeError("the element type is missing: arr[...]")
    type_id = _type_id(element)
    if isinstance(values, (str, bytes)) or not isinstance(values, (Sequence, np.ndarray)):
        raise TypeError(show(values))
    if type_id in (ARRAY, STRING):
        body = b"".join(_encode(element, v) for v in values)
    else:
        body = _numbers(SCALAR_BY_NAME[element], values)
    return struct.pack("<IQ", type_id, len(values)) + body


def _numbers(t: ScalarType, values: Any) -> bytes:
    """`values` as little-endian numbers of type `t`; an error for one that does not fit."""
    if isinstance(values, np.ndarray):
        return _array_numbers(t, values)
    if t.name == "bool" and not all(isinstance(v, (bool, np.bool_)) for v in values):
        raise TypeError(show(list(values)))
    try:
        return struct.pack(f"<{len(values)}{t.code}", *values)
    except (struct.error, OverflowError) as e:
        raise ValueError(f"{show(list(values))} ({e})") from None


def _array_numbers(t: ScalarType, values: np.ndarray) -> bytes:
    target = np.dtype("<" + t.numpy)
    if values.ndim != 1 or values.dtype.kind not in {"b": "b", "f": "fiu"}.get(target.kind, "iu"):
        raise TypeError(f"an array of {values.dtype}{list(values.shape)}")
    if target.kind in "iu" and values.size:
        limits = np.iinfo(target)
        low, high = int(values.min()), int(values.max())
        if low < limits.min or high > limits.max:
            raise ValueError(f"numbers from {low} to {high}")
    with np.errstate(over="ignore"):
        stored = values.astype(target)
    if target.kind == "f" and not np.array_equal(np.isfinite(stored), np.isfinite(values)):
        raise ValueError(f"an array of {values.dtype} with numbers too large for {t.name}")
    return stored.tobytes()
