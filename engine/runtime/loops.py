"""Decode steps without the host, over several devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from gguflow.engine.backends.base import TokenLoop

from .places import BoundCopy


class LoopTogether:
    """A loop a device. One samples; the others' positions move on by themselves, and what all have
    a part of keeps their steps together.

    loops: the one that samples first. brought: what other devices have of the inputs. check: raises
    when a step was given up.
    """

    def __init__(
        self,
        loops: Sequence[TokenLoop],
        brought: Sequence[BoundCopy],
        locks: Sequence[threading.RLock],
        check: Callable[[], None],
    ) -> None:
        self._loops, self._brought = loops, brought
        self._locks, self._check = locks, check

    def start(self) -> None:
        for copy in self._brought:
            copy.run()
        with self._turn():
            for loop in self._loops:
                loop.start()

    def launch(self) -> None:
        """The step on every device, before any other work of another thread is on one of them."""
        with self._turn():
            for loop in self._loops:
                loop.launch()

    def wait(self, step: int) -> np.ndarray:
        tokens = self._loops[0].wait(step)
        self._check()
        return tokens

    def _turn(self) -> ExitStack:
        turn = ExitStack()
        for lock in self._locks:
            turn.enter_context(lock)
        return turn
