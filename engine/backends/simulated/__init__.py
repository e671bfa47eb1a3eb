"""Simulated devices: the reference backend, as many as are asked for, each with memory of its own.
They show what a plan over several devices does where there are none: `simulated:0`, `simulated:1`.
"""

from __future__ import annotations

from typing import Any

from gguflow.engine.backends.base import DeviceId
from gguflow.engine.backends.numpy import NumpyBackend


class SimulatedBackend(NumpyBackend):
    """One of them."""

    def __init__(self, index: int) -> None:
        self.id = DeviceId("simulated", index)
        self.name = self.space = str(self.id)

    def describe(self) -> str:
        return "reference implementations of every op as any number of devices, slow"


def create(options: dict[str, Any]) -> SimulatedBackend:
    """device: its number; there are as many as are asked for."""
    return SimulatedBackend(int(options.get("device") or 0))
