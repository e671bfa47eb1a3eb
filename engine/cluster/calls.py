"""What the process that runs a model asks of those that hold its other stages."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gguflow.engine.backends.base import Live

from .crossing import Crossing
from .part import PlanId

Values = dict[str, np.ndarray]


class Calls(Protocol):
    """What is asked of the process that holds a stage. cache: a number for each set of states."""

    def open(self, cache: int, plan: PlanId, fingerprint: str) -> tuple[str, ...]:
        """Make a plan ready; what runs each op of the part. Raises ClusterError where its plan is
        another one."""

    def run(
        self, cache: int, plan: PlanId, live: Live | None, values: Values, timed: bool
    ) -> tuple[Values, np.ndarray | None]:
        """Run the part: what others read of it, and clock readings [n_ops + 1] of a timed run."""

    def meets(self, name: Crossing) -> str | None:
        """The card that it computes on (`Links.card`); None where it has no memory in common with
        this process, such as this."""

    def begin(
        self, cache: int, plan: PlanId, live: Live | None, values: Values, timed: bool
    ) -> None:
        """Start a side (`PlanId.side`) and do not wait; several may be under way."""

    def end(self, cache: int, plan: PlanId) -> tuple[Values, np.ndarray | None]:
        """What `run` answers, of the run of a side that has begun. Raises what went wrong in either
        call."""

    def close(self, cache: int, plan: PlanId) -> None:
        """A side is not needed any more. Called wherever Python frees memory."""

    def fetch(self, cache: int, plan: PlanId, name: str, at: int, nbytes: int) -> np.ndarray:
        """Bytes of a value of the last run."""

    def read(self, cache: int, name: str, at: int, nbytes: int) -> np.ndarray:
        """Bytes of a state."""

    def write(self, cache: int, name: str, at: int, data: np.ndarray) -> None:
        """Overwrite bytes of a state."""

    def drop(self, cache: int) -> None:
        """Nobody needs these states any more."""
