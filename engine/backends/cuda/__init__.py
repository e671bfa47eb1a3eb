"""The CUDA backend. `create` is what `find_backend("cuda")` calls."""

from __future__ import annotations

from typing import Any

from .backend import CudaBackend
from .errors import CudaError

__all__ = ["CudaBackend", "CudaError", "create"]


def create(options: dict[str, Any]) -> CudaBackend:
    """options: device (int, default 0), equal_bits (as in `Options`). Raises CudaError saying
    what to install or change."""
    return CudaBackend(int(options.get("device") or 0), options.get("equal_bits") or False)
