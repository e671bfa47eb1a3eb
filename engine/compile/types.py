"""What compilation knows of a backend. The real ones in `engine.backends` fit this by shape."""

from __future__ import annotations

from typing import Protocol

from gguflow.engine.graph import Tensor

HOST_SPACE = "host"  # the memory space that this process itself reads and writes


class BackendInfo(Protocol):
    """The part of a backend that planning asks; no device is needed to provide it."""

    @property
    def name(self) -> str: ...

    @property
    def space(self) -> str:
        """Memory space. Backends in one space see each other's tensors without a copy."""

    def supports(self, node: Tensor) -> bool: ...
