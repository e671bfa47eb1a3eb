"""Sizes under a sanitizer (tests/sanitize_gpu.sh), which takes a multiple of a kernel's time for
every access: where a size is that of a real model, and nothing but more of the same."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")
TOOL = os.environ.get("GGUFLOW_SANITIZED", "")
SANITIZED = bool(TOOL)
LARGE = 4096


def fewer(some: T, whole: T) -> T:
    """Under a sanitizer those that launch the same kernels and take the same branches."""
    return some if SANITIZED else whole


def smaller(n: int, parts: int = 4) -> int:
    """Of a large number the `parts`-th part, odd if it is, and others as they are; all of it
    without a sanitizer."""
    return n // parts + n % 2 if SANITIZED and n >= LARGE else n
