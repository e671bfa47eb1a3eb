"""The devices of a model: opened by name, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gguflow.engine.backends.base import Backend, DeviceId
from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.limits import EqualBits

Overrides = tuple[tuple[str, str], ...]


@dataclass
class Devices:
    """Backends by the name that placement has for them.

    find: makes a backend from its kind and number. index: what a kind without a number means.
    """

    find: Callable[[str, int], Backend]
    index: int = 0
    backends: dict[str, Backend] = field(default_factory=dict)
    _opened: dict[DeviceId, str] = field(default_factory=dict)

    def open(self, text: str) -> str:
        """The name of device `cuda:1`, or `cuda`. Raises LookupError when there is none, and what
        the backend raises when it cannot be used."""
        wanted = DeviceId.parse(text, self.index)
        if wanted not in self._opened:
            backend = self.find(wanted.kind, wanted.index)
            if ":" in text and wanted != backend.id:
                raise LookupError(f"no device called {text!r}: there is one {backend.name}")
            self.backends.setdefault(backend.name, backend)
            self._opened[wanted] = backend.name
        return self._opened[wanted]

    def shared(self, equal_bits: EqualBits) -> Devices:
        """The same devices for another model, which runs with these `Options.equal_bits` and may
        open more."""
        same = {name: b.with_bits(equal_bits) for name, b in self.backends.items()}

        def find(kind: str, index: int) -> Backend:
            return self.find(kind, index).with_bits(equal_bits)

        return Devices(find, self.index, same, {**self._opened})

    def named(self, overrides: Sequence[tuple[str, str]]) -> Overrides:
        """Placement rules with the names of devices, which are opened. A target that no backend
        has stays as it is, for placement to refuse."""
        out = []
        for pattern, target in overrides:
            try:
                out.append((pattern, self.open(target)))
            except LookupError:
                out.append((pattern, target))
        return tuple(out)
