"""Times kernels one by one at the shapes of real models."""

from __future__ import annotations

from .cases import KernelCase, all_cases
from .measure import KernelTime, KernelTimer

__all__ = ["KernelCase", "KernelTime", "KernelTimer", "all_cases"]
