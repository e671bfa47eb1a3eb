"""KeyReader: every key that somebody acts on is read here, with a type and bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from .errors import GgufError, show
from .strings import StringArray

NEEDED: Any = object()  # as a default: the key must be there
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
MOST_STRINGS = 1 << 21  # in a list; merges of the largest vocabularies are a quarter of it
FLOAT_MAX = float(np.finfo(np.float32).max)

_T = TypeVar("_T")


class KeyReader:
    """The keys of a file. A value that is not what is asked for is an error that names the file,
    the key, what was found and what was expected: GgufError, or what a subclass makes of it.

    values: as the reader gives them, or plain Python ones. path: of the file.
    """

    def __init__(self, values: Mapping[str, Any], path: str) -> None:
        self._values = values
        self._path = path

    def error(self, key: str, found: str, expected: str) -> ValueError:
        """The error to raise for a key's value."""
        return GgufError(self._path, f"key {show(key)}", found, expected)

    def out_of_range(self, key: str, found: str, least: float, most: float) -> ValueError:
        return self.error(key, found, f"{least:.10g} to {most:.10g}")

    def full_name(self, key: str) -> str:
        """The key's name in the file."""
        return key

    def find(self, key: str) -> Any:
        """The value as the file has it, None where it has none."""
        return self._values.get(self.full_name(key))

    def _read(self, key: str, default: Any, expected: str) -> tuple[bool, Any]:
        """Whether the key is there, and its value or the default."""
        value = self.find(key)
        if value is not None:
            return True, value
        if default is NEEDED:
            raise self.error(key, "no such key", expected)
        return False, default

    # -- one value -------------------------------------------------------------------------------

    def integer(
        self, key: str, default: _T = NEEDED, least: int = 0, most: int = INT32_MAX
    ) -> int | _T:
        """One whole number, `least` to `most`. Defaults are not held to the bounds."""
        is_there, value = self._read(key, default, "int")
        return self.whole(key, value, least, most) if is_there else value

    def whole(self, key: str, value: Any, least: int, most: int) -> int:
        """`value` of a key, or an element of it, as an integer within bounds."""
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise self.error(key, described(value), "int")
        if not least <= value <= most:
            raise self.out_of_range(key, str(value), least, most)
        return int(value)

    def real(
        self, key: str, default: _T = NEEDED, least: float = -FLOAT_MAX, most: float = FLOAT_MAX
    ) -> float | _T:
        """One finite number, `least` to `most`."""
        is_there, value = self._read(key, default, "float")
        return self.number(key, value, least, most) if is_there else value

    def number(self, key: str, value: Any, least: float, most: float) -> float:
        """`value` of a key, or an element of it, as a float within bounds."""
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise self.error(key, described(value), "float")
        if not math.isfinite(value):
            raise self.error(key, f"{value}", "a finite number")
        if not least <= value <= most:
            raise self.out_of_range(key, str(value), least, most)
        return float(value)

    def text(self, key: str, default: _T = NEEDED) -> str | _T:
        """A string."""
        is_there, value = self._read(key, default, "a string")
        if is_there and not isinstance(value, str):
            raise self.error(key, described(value), "a string")
        return value

    def flag(self, key: str, default: _T = NEEDED) -> bool | _T:
        """A truth value."""
        is_there, value = self._read(key, default, "a bool")
        if is_there and not isinstance(value, bool | np.bool_):
            raise self.error(key, described(value), "a bool")
        return bool(value) if is_there else value

    # -- several values --------------------------------------------------------------------------

    def strings(self, key: str, default: _T = NEEDED, most: int = MOST_STRINGS) -> list[str] | _T:
        """An array of at most so many strings."""
        is_there, value = self._read(key, default, "an array of strings")
        if not is_there:
            return value
        if isinstance(value, StringArray | list | tuple) and len(value) > most:
            raise self.error(key, f"{len(value)} strings", f"at most {most}")
        if isinstance(value, StringArray):
            return value.tolist()
        if not isinstance(value, list | tuple):
            raise self.error(key, described(value), "an array of strings")
        # A set of the types is many times faster than a Python loop over 280,000 items.
        if set(map(type, value)) - {str}:
            i = next(i for i, item in enumerate(value) if type(item) is not str)
            raise self.error(f"{key}[{i}]", described(value[i]), "a string")
        return list(value)

    def array(self, key: str, count: int, kinds: str, what: str = "") -> np.ndarray | None:
        """An array [count] whose dtype kind is one of `kinds` ("b", "i", "u", "f"); None if absent.
        what: of which there are so many, for messages."""
        value = self.find(key)
        if value is None:
            return None
        wanted = f"{count} {'numbers' if 'f' in kinds else 'integers'}"
        if isinstance(value, list | tuple) and all(
            isinstance(x, bool | int | float | str | np.number) for x in value
        ):
            value = np.asarray(value)  # an array of arrays, even or ragged, stays what it is
        if not isinstance(value, np.ndarray) or value.ndim != 1:
            raise self.error(key, described(value), wanted)
        # Length first: an empty list has a float dtype, and its length is what is wrong with it.
        if value.shape[0] != count:
            raise self.error(key, f"{value.shape[0]} entries", f"{count}{what}")
        if value.dtype.kind not in kinds:
            raise self.error(key, described(value), wanted)
        return value

    def octets(self, key: str) -> np.ndarray | None:
        """An array of bytes as uint8, signed or not in the file; None if absent."""
        value = self.find(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.itemsize != 1:
            raise self.error(key, described(value), "an array of bytes")
        return value.view(np.uint8)


def described(value: object) -> str:
    """What a value is, for messages: short, whatever is in it."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return "an array"
    return f"a {type(value).__name__}"
