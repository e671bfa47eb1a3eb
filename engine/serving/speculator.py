"""Guesses and checks: the step of sequences that generate, several tokens at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .pages import OutOfPages
from .runner import Runner, Sampling
from .speculation import Drafter, Drafting, Line, Pick, Prepared, Speculation
from .speculation_draft import DraftModel
from .speculation_following import Following
from .speculation_lookup import Lookup, NGramCache
from .speculation_pace import Pace, Times
from .speculation_rounds import RoundStarter
from .speculation_rows import accepted, verify_rows, verify_sampling

if TYPE_CHECKING:
    from gguflow.engine.model import Model


class Speculator:
    """Speculation over a runner's sequences. drafting: what came of it so far."""

    def __init__(self, model: Model, speculation: Speculation, runner: Runner) -> None:
        self.drafting = Drafting()
        self._speculation, self._runner = speculation, runner
        self._times = Times(runner.buckets.checked, runner.is_host)
        self._cache: NGramCache | None = None
        self._paced: list[tuple[Drafter, Pace]] = []
        self._asked: list[int] = []  # of the last drafter, for each line
        for drafter in self._drafters(model):
            pace = Pace(speculation.most, runner.buckets.n_verify, self._times)
            self._paced.append((drafter, pace))
        self._follow = self._following()

    def _drafters(self, model: Model) -> list[Drafter]:
        s = self._speculation
        if s.drafter is not None:
            return [s.drafter]
        found: list[Drafter] = []
        if s.lookup:
            if s.lookup_cache:
                self._cache = NGramCache(model)
                self._cache.read(s.lookup_cache)
            found.append(Lookup(self._cache))
        if s.draft is not None:
            found.append(DraftModel(s.draft, model, s.p_min))
        return found

    def _following(self) -> Following | None:
        """Rounds that a device makes by itself, where it can guess as the drafter does."""
        if len(self._paced) > 1 or self._runner.is_host or self._runner.kv.states is not None:
            return None
        ((drafter, pace),) = self._paced
        prepared = drafter if isinstance(drafter, Prepared) else None
        draft = drafter if prepared is None else prepared.inner
        if not isinstance(draft, DraftModel):
            draft = None
        looks_up = isinstance(drafter, Lookup) and drafter.cache is None
        if prepared is None and draft is None and not looks_up:
            return None
        starter = RoundStarter(self._runner, prepared, draft)
        return Following(self._runner.buckets, self._speculation, starter, pace, self._times)

    def forget(self, keys: set[int]) -> None:
        """These lines have ended."""
        for drafter, pace in self._paced:
            drafter.forget(keys)
            pace.forget(keys)
        if self._follow is not None:
            self._follow.forget(keys)

    @property
    def is_ahead(self) -> bool:
        """Whether rounds are on their way to the device: `step` brings those next."""
        return self._follow is not None and self._follow.is_on

    def stop(self) -> None:
        """Start no more rounds; those on their way are still to be taken."""
        if self._follow is not None:
            self._follow.stop()

    def drop(self) -> None:
        """Take none of the rounds on their way."""
        if self._follow is not None:
            self._follow.drop()

    def save(self) -> None:
        """Write what was learned to the lookup's cache file, if there is one. Raises
        SpeculationError."""
        if self._cache is not None:
            self._cache.write(self._speculation.lookup_cache)

    # -- steps -----------------------------------------------------------------------------------

    def plain_steps(self, n_lines: int) -> int:
        """How many runs to make without guesses before `step` is called."""
        if not self._speculation.adaptive:
            return 0
        if self._times.plain(n_lines) is None:
            return 1
        return min(pace.waits for _, pace in self._paced)

    def ran_plain(self, n_lines: int, seconds: float, n_runs: int = 1) -> None:
        """Runs without guesses were made, for so many lines, which took so long together."""
        self._times.ran_plain(n_lines, seconds / n_runs)
        for _, pace in self._paced:
            pace.waits = max(0, pace.waits - n_runs)

    def step(
        self,
        lines: Sequence[Line],
        sampling: Sampling,
        picks: Sequence[Pick | None],
        alone: bool = True,
    ) -> list[list[int]] | None:
        """The next tokens of each line, one or more; None where nothing is worth guessing.

        sampling: operands of their next draws. picks: of each line, what chooses its tokens where
        the `sample` op does not; called once a token, in order. alone: whether nothing else waits
        for its turn.

        The rows of all of them but the last are in the cache then, which was not told. Should it
        raise, or return None, nothing has happened.

        It may leave rounds on their way (`is_ahead`): the next ones are of the same lines, in this
        order, of which one that has ended gets tokens for nothing. Pages are set aside for them,
        to give back when they are over.
        """
        if self.is_ahead:
            return self._next_round()
        began = time.perf_counter()
        guesses, whose, apart = self._guess(lines, sampling)
        if alone and self._starts(lines, guesses, sampling, picks):
            return self._next_round()
        kv = self._runner.kv
        for line, mine in zip(lines, guesses, strict=True):
            # A copy of a recurrent state is made of what a run leaves, not within one.
            del mine[kv.until_checkpoint(line.seq, 1 + len(mine)) - 1 :]
            try:
                kv.grow(line.seq, 1 + len(mine))
            except OutOfPages:
                mine.clear()
                kv.grow(line.seq, 1)
        if not any(guesses) or not self._mark(lines):
            return None
        try:
            found = self._check(lines, guesses, sampling, picks)
        except BaseException:
            self._take_back(lines)
            raise
        n_rows = len(lines) + sum(map(len, guesses))
        self._times.ran(n_rows, time.perf_counter() - began - apart)
        self._note(lines, guesses, whose, found)
        return found

    # -- inside ----------------------------------------------------------------------------------

    def _starts(
        self,
        lines: Sequence[Line],
        guesses: Sequence[Sequence[int]],
        sampling: Sampling,
        picks: Sequence[Pick | None],
    ) -> bool:
        """Whether the device goes on by itself."""
        if self._follow is None or self._runner.profile is not None or any(picks):
            return False
        return self._follow.start(lines, self._asked, guesses, sampling)

    def _next_round(self) -> list[list[int]]:
        assert self._follow is not None
        found = self._follow.next()
        n_drafted = sum(f.n_guessed for f in found if f is not None)
        self.drafting.rounds += 1
        self.drafting.drafted += n_drafted
        self.drafting.accepted += sum(max(0, len(f.tokens) - 1) for f in found if f is not None)
        return [[] if f is None else f.tokens for f in found]

    def _check(
        self,
        lines: Sequence[Line],
        guesses: Sequence[Sequence[int]],
        sampling: Sampling,
        picks: Sequence[Pick | None],
    ) -> list[list[int]]:
        runs = [[line.tokens[-1], *mine] for line, mine in zip(lines, guesses, strict=True)]
        seqs = np.array([line.seq for line in lines], np.int64)
        places = [len(line.tokens) - 1 for line in lines]
        rows = verify_rows(seqs, places, runs)
        results = self._runner.run(rows, verify_sampling(sampling, runs))
        found = accepted(results, runs, picks)
        if self._runner.kv.states is not None:
            # A state has gone on with wrong guesses too: from the mark, with the right ones alone.
            wrong = [i for i, run in enumerate(runs) if len(found[i]) < len(run)]
            self._take_back([lines[i] for i in wrong])
            if wrong:
                right = [runs[i][: len(found[i])] for i in wrong]
                at = [places[i] for i in wrong]
                self._runner.run(verify_rows(seqs[wrong], at, right, False))
        return found

    def _mark(self, lines: Sequence[Line]) -> bool:
        """Copies of recurrent states, where there are any; False where one has no room."""
        if (states := self._runner.kv.states) is None:
            return True
        try:
            for line in lines:
                states.mark(line.seq)
        except OutOfPages:
            return False
        return True

    def _take_back(self, lines: Sequence[Line]) -> None:
        if (states := self._runner.kv.states) is not None:
            for line in lines:
                states.go_back(line.seq)

    def _guess(
        self, lines: Sequence[Line], sampling: Sampling
    ) -> tuple[list[list[int]], list[Pace | None], float]:
        """Guesses for each line, by whose pace they were made, and the drafters' own seconds."""
        s = self._speculation
        apart = 0.0
        guesses: list[list[int]] = [[] for _ in lines]
        whose: list[Pace | None] = [None] * len(lines)
        n_free = self._runner.buckets.n_verify - len(lines)
        for drafter, pace in self._paced:
            left = [i for i, mine in enumerate(guesses) if not mine]
            room = [max(0, lines[i].most - 1) for i in left]
            if s.adaptive:
                keys = [lines[i].key for i in left]
                lengths = pace.lengths(keys, room, drafter.seconds(len(left)))
            else:
                lengths = [min(n, s.most, n_free // len(lines)) for n in room]
            self._asked = lengths
            if not any(lengths):
                continue
            part = Sampling(*(x[left] for x in sampling))
            made = drafter.draft([lines[i] for i in left], lengths, part)
            apart += drafter.took
            for i, mine in zip(left, made, strict=True):
                if len(mine) >= max(1, s.least) and len(mine) <= n_free:
                    guesses[i], whose[i] = mine, pace
                    n_free -= len(mine)
        return guesses, whose, apart

    def _note(
        self,
        lines: Sequence[Line],
        guesses: Sequence[Sequence[int]],
        whose: Sequence[Pace | None],
        found: Sequence[Sequence[int]],
    ) -> None:
        d = self.drafting
        d.rounds += 1
        for line, mine, pace, tokens in zip(lines, guesses, whose, found, strict=True):
            if pace is not None and mine:
                pace.outcome(line.key, len(mine), len(tokens) - 1)
            d.drafted += len(mine)
            d.accepted += len(tokens) - 1
        if self._runner.profile is not None:
            self._runner.profile.header.facts["speculation"] = d.facts()
