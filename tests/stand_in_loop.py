"""A stand-in for a device that makes token after token by itself.

The CPU backend's plan runs every step when it is launched, long before its tokens are asked for.
"""

from __future__ import annotations

import numpy as np
import pytest

from gguflow.engine.plan_key import PAGE
from gguflow.engine.runtime import BoundPlan


class Loop:
    """What a device does: inputs are taken once, and every step writes the next one's."""

    made: list[Loop] = []

    def __init__(self, bound: BoundPlan) -> None:
        self.bound = bound
        self.ring: dict[int, np.ndarray] = {}
        self.launched = self.waited = self.n_steps = 0
        self.fails = False
        Loop.made.append(self)

    def start(self) -> None:
        self.ring.clear()
        self.n_steps = 0
        self.inputs = {name: a.copy() for name, a in self.bound.inputs.items()}

    def launch(self) -> None:
        if len(self.ring) >= 64:
            raise AssertionError("too many steps on their way")
        self.launched += 1
        self.n_steps += 1
        self.ring[self.n_steps] = self._end(self.run())

    def run(self) -> np.ndarray:
        """The plan with the device's inputs; what it samples."""
        mine, theirs = self.inputs, {n: a.copy() for n, a in self.bound.inputs.items()}
        for name, a in mine.items():
            self.bound.inputs[name][...] = a
        self.bound.run()
        sampled = self.bound.outputs[-1].copy()
        for name, a in theirs.items():  # the host's copies are not the device's
            self.bound.inputs[name][...] = a
        return sampled

    def _end(self, sampled: np.ndarray) -> np.ndarray:
        """Write the next inputs; what is told of each row."""
        mine = self.inputs
        live = mine["pos"] >= 0
        tokens = np.where(live, sampled, -1)
        mine["tokens"][:] = tokens
        mine["pos"][live] += 1
        for name, table in mine.items():
            if name.startswith("table."):
                pages = table[mine["seq"], np.minimum(mine["pos"] // PAGE, table.shape[1] - 1)]
                rows = np.where(pages < 0, -1, pages * PAGE + mine["pos"] % PAGE)
                mine["rows." + name.removeprefix("table.")][live] = rows[live]
        mine["sampler.rng"][live, 1] += 1
        history = mine["sampler.history"]
        history[live] = np.concatenate([history[:, 1:], tokens[:, None]], axis=1)[live]
        return tokens

    def wait(self, step: int) -> np.ndarray:
        if self.fails:
            self.fails = False
            raise KeyboardInterrupt
        self.waited += 1
        return self.ring.pop(step)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every plan a loop."""
    loops: dict[int, Loop] = {}

    def loop_of(bound: BoundPlan) -> Loop:
        if id(bound) not in loops:
            loops[id(bound)] = Loop(bound)
        return loops[id(bound)]

    monkeypatch.setattr(BoundPlan, "token_loop", property(loop_of))
    Loop.made = []
