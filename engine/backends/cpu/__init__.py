"""The CPU backend. `create` is what `find_backend("cpu")` calls."""

from __future__ import annotations

from typing import Any

from .backend import CpuBackend, default_threads
from .native import CpuLibraryError, load_library, runnable_isas

__all__ = ["CpuBackend", "CpuLibraryError", "create", "default_threads", "load_library",
           "runnable_isas"]  # fmt: skip


def create(options: dict[str, Any]) -> CpuBackend:
    """options: n_threads (int), isa (str)."""
    return CpuBackend(options.get("n_threads"), options.get("isa"))
