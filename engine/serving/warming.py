"""The plans of sizes that requests will have, made while nobody waits for them.

A plan of a new size takes a moment to be made, and seconds where its kernels are not compiled yet:
so long all sequences of the run wait. A server makes them one by one while it has nothing else to
do; a request that comes meanwhile waits for the step that is being made.
"""

from __future__ import annotations

from collections.abc import Iterator

from .runner import PLAN_CACHE, Runner

SPARE = 16  # plans that a runner has room for beside these
LEAST_ROOM = 128 << 20  # bytes of a device that are left to others: a plan takes a few MiB there


class Warming:
    """Plans of `Buckets.usual`, as many as a runner keeps."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._steps = self._make()

    def step(self) -> bool:
        """Make a part of a plan that is not there yet; False where all are, or a device has no room
        for another one."""
        return next(self._steps, False)

    def _make(self) -> Iterator[bool]:
        runner = self._runner
        for key in runner.buckets.usual()[: PLAN_CACHE - SPARE]:
            if runner.has_plan(key):
                continue
            if not self._has_room():
                return
            try:
                for part in (runner.model.plan, runner.plan, runner.make_ready):
                    part(key)
                    yield True
            except MemoryError:  # who needs it is told
                return

    def _has_room(self) -> bool:
        memories = (b.memory for b in self._runner.model.backends.values())
        return all(m.room()[0] >= LEAST_ROOM for m in memories if m is not None)
