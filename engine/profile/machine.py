"""The machine's name as a person would say it: the processor and how many cores may be used."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path


@cache
def machine_name() -> str:
    """E.g. "AMD EPYC 9654, 16 cores". Never raises; says "unknown processor" if nothing does."""
    return f"{_processor()}, {cores()} cores"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model"):
                return " ".join(value.split())
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown processor"


def cores() -> int:
    """Cores this process may run on, which containers and taskset make fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
