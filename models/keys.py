"""Typed access to a file's `<arch>.*` keys: every number is read here, within bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gguflow.engine.gguf.errors import show
from gguflow.engine.gguf.keys import INT32_MAX, NEEDED, KeyReader, described
from gguflow.engine.harmless import message_line


class ModelError(ValueError):
    """A file that is sound GGUF but not a model this project can run: names key or tensor."""

    def __init__(self, text: str) -> None:
        super().__init__(message_line(text))


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
            if _says(value):
                raise ModelError(
                    f"{name}: {show(value)} may change the results, and is not understood here"
                )


def _says(value: Any) -> bool:
    """Whether a value is other than 0, false or empty, or an array of such."""
    if isinstance(value, np.ndarray):
        return bool(value.any())
    if isinstance(value, str) or not hasattr(value, "__len__"):
        return bool(value)
    return any(map(_says, value))


class Keys(KeyReader):
    """The keys of one architecture. Errors name the key, what was found and what was expected; who
    knows the file puts its name before that."""

    def __init__(self, metadata: Mapping[str, Any], arch: str) -> None:
        super().__init__(metadata, "")
        self.arch = arch

    def full_name(self, key: str) -> str:
        return f"{self.arch}.{key}"

    def error(self, key: str, found: str, expected: str) -> ModelError:
        if found == "no such key":
            return ModelError(
                f"{self.arch}.{key}: missing, and the {self.arch} architecture needs it"
            )
        return ModelError(f"{self.arch}.{key}: expected {expected}, found {found}")

    def out_of_range(self, key: str, found: str, least: float, most: float) -> ModelError:
        return ModelError(f"{self.arch}.{key}: {found} is out of range {least:.10g}..{most:.10g}")

    def by_layer(
        self, key: str, n_layer: int, default: int | tuple[int, ...] = NEEDED,
        least: int = 0, most: int = INT32_MAX,
    ) -> tuple[int, ...]:  # fmt: skip
        """A number for every layer, from an array of them or from one number for all."""
        is_there, value = self._read(key, default, "int")
        if not isinstance(value, np.ndarray | list | tuple):
            return (self.whole(key, value, least, most),) * n_layer
        values = value.tolist() if isinstance(value, np.ndarray) else list(value)
        if len(values) != n_layer:
            raise self.error(key, f"{len(values)} values", f"int, or {n_layer}, one a layer")
        return tuple(
            self.whole(f"{key}[{i}]" if is_there else key, x, least, most)
            for i, x in enumerate(values)
        )

    def flags(self, key: str, n: int) -> tuple[bool, ...]:
        """An array of `n` truth values."""
        value = self.find(key)
        if isinstance(value, list | tuple) and all(isinstance(x, bool | int) for x in value):
            value = np.asarray(value)
        if value is None:
            raise self.error(key, "no such key", f"{n} of 0 or 1")
        values = value if isinstance(value, np.ndarray) else np.empty(0)
        if values.shape != (n,) or values.dtype.kind not in "biu" or values.max(initial=0) > 1:
            raise self.error(key, described(value), f"{n} of 0 or 1")
        return tuple(bool(x) for x in values)
