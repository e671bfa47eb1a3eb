"""Runs of several bound plans that are under way at the same time."""

from __future__ import annotations

from collections import deque
from types import TracebackType

from gguflow.engine.backends.base import Live

from .bind import BoundPlan


class Together:
    """Up to `most` runs at a time, which end in the order in which they began, all of them when
    the block is left."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun: deque[BoundPlan] = deque()

    def __enter__(self) -> Together:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Raises the first thing that a run raises, unless the block has."""
        failed: BaseException | None = None
        while self._begun:
            try:
                self._begun.popleft().end()
            except BaseException as e:
                failed = failed or e
        if failed is not None and error is None:
            raise failed

    def make_room(self) -> None:
        """Wait until another may begin, and the inputs of the plan that began `most` runs ago be
        written."""
        while len(self._begun) >= self._most:
            self._begun.popleft().end()

    def begin(self, bound: BoundPlan, live: Live | None) -> None:
        bound.begin(live)
        self._begun.append(bound)
