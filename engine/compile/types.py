"""What compilation knows of a backend. The real ones in `engine.backends` fit this by shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gguflow.engine.graph import Tensor

ChannelBytes = Callable[[int, Sequence[int], Sequence[tuple[int, int]]], int]
HOST_SPACE = "host"  # the memory space that this process itself reads and writes


class MemoryInfo(Protocol):
    """The part of a device's memory that a forecast asks."""

    @property
    def unit(self) -> int:
        """Bytes that allocations are multiples of."""

    @property
    def row_unit(self) -> int:
        """Bytes that rows of quantized matrices begin at multiples of."""

    def scratch_bytes(self, nodes: Sequence[Tensor]) -> int:
        """What the kernels of a plan with these nodes will share."""


class LinksInfo(Protocol):
    """How a device's programs exchange values with others while both run."""

    @property
    def channel_bytes(self) -> ChannelBytes | None:
        """Memory of a device for exchanges of that many, of these sizes (`compile.exchanges`)."""

    @property
    def reaches(self) -> Callable[[Any], bool]:
        """Whether this device's programs can write into the memory of another backend."""


class BackendInfo(Protocol):
    """The part of a backend that planning asks; no device is needed to provide it."""

    @property
    def name(self) -> str: ...

    @property
    def space(self) -> str:
        """Memory space. Backends in one space see each other's tensors without a copy."""

    @property
    def memory(self) -> MemoryInfo | None:
        """None for the host's memory."""

    @property
    def links(self) -> LinksInfo | None:
        """None where programs can only take turns."""

    def supports(self, node: Tensor) -> bool: ...

    def supports_strides(self, node: Tensor) -> bool:
        """Whether its kernel for a node that it supports writes the result where the node's strides
        and offset say, in rows with gaps between them."""
