"""The plans of sizes that requests will have, made while nobody waits for them.

A plan of a new size takes a moment to be made, and seconds where its kernels are not compiled yet:
so long all sequences of the run wait. A server makes them one by one while it has nothing else to
do; a request that comes meanwhile waits for the one that is being made.
"""

from __future__ import annotations

from collections import deque

from .runner import PLAN_CACHE, Runner

SPARE = 8  # plans that a runner has room for beside these


class Warming:
    """Plans of `Buckets.usual`, as many as a runner keeps."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._left = deque(runner.buckets.usual()[: PLAN_CACHE - SPARE])

    def step(self) -> bool:
        """Make one that is not there yet; False where all are, or a device has no room for it."""
        while self._left:
            key = self._left.popleft()
            if self._runner.has_plan(key):
                continue
            try:
                self._runner.make_ready(key)
            except MemoryError:  # who needs it is told
                self._left.clear()
            else:
                return True
        return False
