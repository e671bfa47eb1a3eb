"""Metadata value types: GGUF's numbers, this project's names for them, and typed values.

A kind is written `u32`, `f32`, `bool`, `str`, ... and `arr[u32]`, `arr[str]`, `arr[arr[f32]]` for
arrays. `arr[arr]` is an array of arrays that holds none, whose element type the file does not say.
Source of the numbers: the GGUF specification, `enum gguf_metadata_value_type`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gguflow.engine.dataclass import dataclass

STRING = 8
ARRAY = 9


@dataclass(frozen=True)
class ScalarType:
    """A fixed-size value type: GGUF id, name, `struct` code, numpy type (no byte order)."""

    id: int
    name: str
    code: str
    numpy: str

    @property
    def nbytes(self) -> int:
        return int(self.numpy[1:])


_SCALARS = (
    ScalarType(0, "u8", "B", "u1"),
    ScalarType(1, "i8", "b", "i1"),
    ScalarType(2, "u16", "H", "u2"),
    ScalarType(3, "i16", "h", "i2"),
    ScalarType(4, "u32", "I", "u4"),
    ScalarType(5, "i32", "i", "i4"),
    ScalarType(6, "f32", "f", "f4"),
    ScalarType(7, "bool", "?", "b1"),
    ScalarType(10, "u64", "Q", "u8"),
    ScalarType(11, "i64", "q", "i8"),
    ScalarType(12, "f64", "d", "f8"),
)
SCALAR_BY_ID = {t.id: t for t in _SCALARS}
SCALAR_BY_NAME = {t.name: t for t in _SCALARS}

_GROUPS: dict[str, tuple[str, ...]] = {
    "int": tuple(t.name for t in _SCALARS if t.numpy[0] in "ui"),
    "float": ("f32", "f64"),
}
_PYTHON = {int: "int", float: "float", bool: "bool", str: "str", list: "arr", np.ndarray: "arr"}


@dataclass(frozen=True)
class Typed:
    """A metadata value with its kind spelled out: `Typed("u64", 5)`, `Typed("arr[u8]", [1, 2])`."""

    kind: str
    value: Any


def kind_name(kind: str | type) -> str:
    """The name of what a caller asks for: a kind, a group, or a Python type (`int` -> "int")."""
    if isinstance(kind, str):
        return kind
    if kind not in _PYTHON:
        raise TypeError(
            f"{kind!r} is no metadata type; use a kind such as 'u32' or one of "
            f"{', '.join(t.__name__ for t in _PYTHON)}"
        )
    return _PYTHON[kind]


def kind_matches(kind: str, wanted: str) -> bool:
    """Whether a value of `kind` is what `wanted` names.

    `wanted` is an exact kind, `int` or `float` (any width), `arr` (any array), `arr[int]` or
    `arr[float]`. A bool is no int, and an int no float: GGUF keeps them apart.
    """
    if wanted == "arr":
        return kind.startswith("arr[")
    if wanted.startswith("arr[") and kind.startswith("arr["):
        return kind_matches(kind[4:-1], wanted[4:-1])
    return kind == wanted or kind in _GROUPS.get(wanted, ())
