"""Typed access to a file's `<arch>.*` keys: every number is read here, within bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


class ModelError(ValueError):
    """A file that is sound GGUF but not a model this project can run: names key or tensor."""


# Keys that say nothing about the results of a file's text, or repeat what others say.
_SAYS_NOTHING = (
    "vocab_size", "context_length", "tensor_data_layout", "attention.causal", "mm.", "vision.",
    "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "rope.scaling.finetuned",
    # Of YaRN, where another scaling is meant; of images, whose positions text does not have.
    "rope.scaling.original_context_length", "rope.scaling.yarn_beta_", "rope.dimension_sections",
    # Of experts, where there are none.
    "expert_used_count", "expert_feed_forward_length",
)  # fmt: skip


class Asked(Mapping[str, Any]):
    """A file's keys, and which of them somebody has asked for."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self._asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self._asked.add(key)
        return self._metadata[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._metadata)

    def __len__(self) -> int:
        return len(self._metadata)

    def refuse_others(self, arch: str) -> None:
        """Raises ModelError for a key of the architecture `arch` that nobody has asked for, unless
        it says nothing or is 0 or false: what it means might change the results."""
        for name, value in self._metadata.items():
            key = name.removeprefix(f"{arch}.")
            if key == name or name in self._asked or key.startswith(_SAYS_NOTHING):
                continue
            if np.any(np.asarray(value)):
                raise ModelError(
                    f"{name}: {value!r:.60} may change the results, and is not understood here"
                )


class Keys:
    """The keys of one architecture. Errors name the key, what was found and what was expected."""

    def __init__(self, metadata: Mapping[str, Any], arch: str) -> None:
        self.metadata = metadata
        self.arch = arch

    def _value(self, key: str, default: Any) -> Any:
        value = self.metadata.get(f"{self.arch}.{key}", default)
        if value is None:
            raise ModelError(
                f"{self.arch}.{key}: missing, and the {self.arch} architecture needs it"
            )
        return value

    def _number(self, key: str, value: Any, kinds: tuple[type, ...]) -> Any:
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ModelError(
                f"{self.arch}.{key}: expected {kinds[0].__name__}, found {value!r:.60}"
            )
        return value

    def integer(
        self, key: str, default: int | None = None, least: int = 0, most: int = 1 << 31
    ) -> int:
        """One number, `least` to `most`. Without a default the key must be there."""
        value = int(self._number(key, self._value(key, default), (int,)))
        if not least <= value <= most:
            raise ModelError(f"{self.arch}.{key}: {value} is out of range {least}..{most}")
        return value

    def by_layer(
        self, key: str, n_layer: int, default: int | tuple[int, ...] | None = None,
        least: int = 0, most: int = 1 << 31,
    ) -> tuple[int, ...]:  # fmt: skip
        """A number for every layer, from an array of them or from one number for all."""
        value = self._value(key, default)
        listed = isinstance(value, np.ndarray | tuple)
        values = np.asarray(value).tolist() if listed else [value] * n_layer
        if not isinstance(values, list) or len(values) != n_layer:
            raise ModelError(
                f"{self.arch}.{key}: expected int, or {n_layer}, one a layer, found {value!r:.60}"
            )
        numbers = tuple(int(self._number(key, x, (int,))) for x in values)
        for i, x in enumerate(numbers):
            if not least <= x <= most:
                where = f"[{i}]" if listed else ""
                raise ModelError(f"{self.arch}.{key}{where}: {x} is out of range {least}..{most}")
        return numbers

    def find(self, key: str) -> Any:
        """The value as the file has it, None where it has none."""
        return self.metadata.get(f"{self.arch}.{key}")

    def flags(self, key: str, n: int) -> tuple[bool, ...]:
        """An array of `n` truth values."""
        value = self._value(key, None)
        values = np.asarray(value)
        if values.shape != (n,) or values.dtype.kind not in "biu" or (values > 1).any():
            raise ModelError(f"{self.arch}.{key}: expected {n} of 0 or 1, found {value!r:.60}")
        return tuple(bool(x) for x in values)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.arch}.{key}: expected true or false, found {value!r:.60}")
        return value

    def real(
        self, key: str, default: float | None = None, least: float = -math.inf,
        most: float = math.inf,
    ) -> float:  # fmt: skip
        """One finite number, `least` to `most`."""
        value = float(self._number(key, self._value(key, default), (float, int)))
        if not math.isfinite(value):
            raise ModelError(f"{self.arch}.{key}: {value} is not a finite number")
        if not least <= value <= most:
            raise ModelError(f"{self.arch}.{key}: {value} is out of range {least}..{most}")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.metadata.get(f"{self.arch}.{key}", default)
        if not isinstance(value, str):
            raise ModelError(f"{self.arch}.{key}: expected text, found {value!r:.60}")
        return value
