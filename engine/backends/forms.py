"""Forms that a backend has weights in, other than the file's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from gguflow.engine.graph import DType, Tensor

from .base import Buffer


class Packer(Protocol):
    """Weights in a backend's own layout, in memory that somebody else keeps: of the host.

    n_threads: that it works with.
    """

    n_threads: int

    def layout(self, dtypes: Iterable[DType]) -> str:
        """Names the layout of matrices of these types: another text where the bytes would be
        others, or where kernels would read them otherwise."""

    def pack(self, weight: Tensor, raw: np.ndarray, out: np.ndarray) -> None:
        """A weight's bytes (uint8) in that layout to `out`, uint8 [packed bytes]."""

    def buffer(self, data: np.ndarray) -> Buffer:
        """Packed bytes, which stay where they are, as a buffer."""


class Compactor(Protocol):
    """A second form of a device's weights, in fewer bytes and with the same values, for those of
    its kernels that read faster from it."""

    def several_rows(self, t: DType) -> bool:
        """Whether products of several rows may read it of weights of this type, or only those of
        one."""

    def bytes_of(self, weight: Tensor, users: Sequence[Tensor]) -> int:
        """Of that form; 0 for a weight that none of these nodes would read so."""

    def make(self, weights: Sequence[tuple[Tensor, Sequence[Tensor], Buffer]]) -> int:
        """Make it of weights, for their users, from the buffers that they are in; of those with
        values that it cannot hold there is none. What is lowered from now on reads it. Bytes that
        it takes. Raises MemoryError."""
