"""What a model's devices were forecast to hold, beside what they do."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from gguflow.engine.model import Model

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def memory_of(model: Model) -> dict[str, Any]:
    """The forecast's bytes by memory space, (free, all) bytes of those that are a device's, and
    what this process, in which the model is, has taken."""
    spaces, compact = {}, model.compact_bytes()
    for space, b in model.plan(model.buckets.largest).bytes_by_space().items():
        spaces[space] = {
            "weights": b.weights, "compact": compact.get(space, 0), "cache": b.states,
            "inputs": b.inputs, "results": b.results, "copies": b.copies, "exchange": b.exchange,
            "arena": b.arena, "scratch": b.scratch,
            "total": b.total + compact.get(space, 0),
        }  # fmt: skip
    room = {b.space: [*b.memory.room()] for b in model.backends.values() if b.memory is not None}
    return {"forecast": spaces, "room": room, "rss": resident(),
            "repacked": model.repacked_bytes(), "held": _held()}  # fmt: skip


def _held() -> dict[str, int]:
    """Threads and descriptors of the process, where the system says."""
    held = {}
    for name, place in (("threads", "task"), ("descriptors", "fd")):
        with suppress(OSError):
            held[name] = len(os.listdir(f"/proc/self/{place}"))
    return held


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
