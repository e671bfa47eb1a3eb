"""The null backend: it plans, forecasts and costs, and runs nothing. `create` is what
`find_backend("null:1")` calls."""

from __future__ import annotations

from typing import Any

from .backend import NullBackend, NullError

__all__ = ["NullBackend", "NullError", "create"]


def create(options: dict[str, Any]) -> NullBackend:
    """options: device (int, default 0); peaks, as `NullBackend`'s; memory, bytes of it."""
    given = {k: options[k] for k in ("peaks", "memory") if options.get(k) is not None}
    return NullBackend(int(options.get("device") or 0), **given)
