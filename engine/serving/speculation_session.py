"""Speculation for a session, which hands out one token at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .host_sampling import Choice, HostSampler
from .replay import recall
from .runner import Runner, Sampling
from .speculation import Drafting, Line, Speculation
from .speculator import Speculator

if TYPE_CHECKING:
    from gguflow.engine.model import Model


class SessionGuesses:
    """Tokens of the generation that was the last to step, known before they are asked for.

    Their rows are in the cache, which is told of each when its token is taken.
    """

    def __init__(self, model: Model, speculation: Speculation, runner: Runner) -> None:
        self._speculator = Speculator(model, speculation, runner)
        self._runner = runner
        self._known: deque[Choice | Exception] = deque()
        self._n_before = 0  # rows of the sequence before the run that brought them
        self._key = 0
        self._began = 0.0

    @property
    def drafting(self) -> Drafting:
        return self._speculator.drafting

    @property
    def plain_steps(self) -> int:
        """How many tokens to make without guesses."""
        return self._speculator.plain_steps(1)

    def settle(self, seq: int) -> None:
        """Forget what is known of tokens that were not taken; a recurrent state, which has gone on
        with them, goes back."""
        kv, was_ahead = self._runner.kv, bool(self._known)
        self._known.clear()
        self._speculator.drop()
        if was_ahead and kv.states is not None:
            kv.states.go_back(seq)
            recall(self._runner, seq, self._n_before)

    def restart(self) -> None:
        """Another generation steps next, or one whose rows have gone."""
        self._speculator.forget({self._key})
        self._key += 1

    def next(
        self, ids: Sequence[int], seq: int, most: int, sampling: Sampling,
        host: HostSampler | None = None,
    ) -> Choice | None:  # fmt: skip
        """The token after a sequence, of which the last one's row is missing; None where it is to
        be made without guesses, see `made_plain`. Raises what the host's sampler does.

        most: tokens it may still get. host: chooses them, where the `sample` op does not.
        """
        self._began = time.perf_counter()
        if not self._known and (self._speculator.is_ahead or not self.plain_steps):
            chosen: list[Choice | Exception] = []

            def pick(logits: np.ndarray, before: Sequence[int]) -> int:
                assert host is not None
                step = int(sampling.rng[0, 1]) + len(before)
                try:
                    choice = host.choose(logits, [*ids, *before], step)
                except Exception as e:
                    chosen.append(e)
                    return -1
                chosen.append(choice)
                return choice.id

            self._n_before = len(ids) - 1
            line = Line(self._key, seq, ids, most)
            found = self._speculator.step([line], sampling, [None if host is None else pick])
            self._known.extend(chosen if host else map(Choice, found[0] if found else ()))
        if not self._known:
            return None
        choice = self._known.popleft()
        if isinstance(choice, Exception):
            raise choice
        return choice

    def made_plain(self) -> None:
        """The token that `next` had not was made."""
        self.ran_plain(time.perf_counter() - self._began, 1)

    def ran_plain(self, seconds: float, n_runs: int) -> None:
        """So many tokens were made without guesses, in so many seconds."""
        self._speculator.ran_plain(1, seconds, n_runs)

    def save(self) -> None:
        """See `Speculator.save`."""
        self._speculator.forget({self._key})
        self._speculator.save()
