"""Speculation for requests whose tokens are chosen on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from .host_sampling import Choice
from .request import Job, RequestId
from .speculation import Pick


class Picked:
    """What the hosts' samplers of some jobs choose in a round: a choice for each of its tokens, or
    what was raised instead."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.picks: list[Pick | None] = [
            None if job.host is None else partial(self._pick, job) for job in jobs
        ]
        self._found: list[dict[RequestId, Choice | Exception]] = []

    def at(self, i: int) -> Mapping[RequestId, Choice | Exception]:
        """Those of the i-th tokens of the round."""
        return self._found[i] if i < len(self._found) else {}

    def _pick(self, job: Job, logits: np.ndarray, before: Sequence[int]) -> int:
        assert job.host is not None
        choice: Choice | Exception
        try:
            n = len(before)
            choice = job.host.choose(logits, [*job.tokens, *before], job.n_generated + n)
        except Exception as e:
            choice = e
        while len(self._found) <= len(before):
            self._found.append({})
        self._found[len(before)][job.id] = choice
        return -1 if isinstance(choice, Exception) else choice.id
