"""Decode steps of simulated devices that follow each other without the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gguflow.engine.plan_key import PAGE

from .stream import Done, Stream


class SimulatedLoop:
    """As `TokenLoop`.

    inputs: arrays over the device's memory, by name; `token`, where this device samples. run: a
    step.
    """

    def __init__(
        self, stream: Stream, inputs: Mapping[str, np.ndarray], run: Callable[[], None]
    ) -> None:
        self._stream, self._inputs, self._run = stream, inputs, run
        self._ring: dict[int, tuple[Done, list[np.ndarray]]] = {}
        self._n = 0

    def start(self) -> None:
        self._stream.put(lambda: None).wait()
        self._ring.clear()
        self._n = 0

    def launch(self) -> None:
        self._n += 1
        tokens: list[np.ndarray] = []

        def step() -> None:
            self._run()
            tokens.append(self._advance())

        self._ring[self._n] = self._stream.put(step), tokens

    def wait(self, step: int) -> np.ndarray:
        done, tokens = self._ring.pop(step)
        done.wait()
        return tokens[0]

    def _advance(self) -> np.ndarray:
        """Write the next step's inputs; the tokens of this one, -1 for padding."""
        at = self._inputs
        pos = at["pos"]
        live = pos >= 0
        pos[live] += 1
        for name, table in at.items():
            if name.startswith("table."):
                pages = table[at["seq"], np.minimum(pos // PAGE, table.shape[1] - 1)]
                rows = np.where(pages < 0, -1, pages * PAGE + pos % PAGE)
                at["rows." + name.removeprefix("table.")][live] = rows[live]
        if "token" not in at:
            return np.full(len(pos), -1, np.int32)
        tokens = np.where(live, at["token"], -1).astype(np.int32)
        at["tokens"][live] = tokens[live]
        at["sampler.rng"][live, 1] += 1
        history = at["sampler.history"]
        history[live] = np.concatenate([history[:, 1:], tokens[:, None]], axis=1)[live]
        return tokens
