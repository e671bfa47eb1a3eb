"""The one error of the CUDA backend."""

from __future__ import annotations


class CudaError(RuntimeError):
    """The GPU cannot be used: one line with the reason and what to install or change."""
