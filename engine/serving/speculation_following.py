"""When a device makes rounds of guesses by itself, and when it is better to look again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .buckets import Buckets
from .runner import Sampling
from .speculation import Line, Speculation
from .speculation_pace import Pace, Times
from .speculation_rounds import Outcome, Rounds, RoundStarter

# Sequences that a device makes rounds of. Texts of several are the plain ones too, but what they
# gain beside rounds that the host decides has not been measured.
MOST_LINES = 1
# To begin again takes a few rounds: not before so many of them, nor for lengths that bring less
# than so many times as many tokens a second.
LEAST_ROUNDS, CHANGE = 8, 1.08


class Following:
    """Rounds that follow each other as long as their lengths are the right ones, and while at least
    half of the rows for guesses have one: others are computed for nothing, as those of lines that
    have ended are."""

    def __init__(
        self, buckets: Buckets, speculation: Speculation, starter: RoundStarter, pace: Pace,
        times: Times,
    ) -> None:  # fmt: skip
        self._buckets, self._speculation = buckets, speculation
        self._starter, self._pace, self._times = starter, pace, times
        self._rounds: Rounds | None = None
        self._lines: list[Line | None] = []  # None for one that has ended
        self._n_tokens: list[int] = []  # of each
        self._room: list[int] = []  # tokens that each may still get
        self._lengths: list[int] = []  # guesses that each is asked for
        self._depth = self._n_sure = 0

    @property
    def is_on(self) -> bool:
        return self._rounds is not None

    def start(
        self,
        lines: Sequence[Line],
        lengths: Sequence[int],
        guesses: Sequence[Sequence[int]],
        sampling: Sampling,
    ) -> bool:
        """Begin with rounds of these lengths; whether that is worth while and can be done. guesses:
        what would be guessed first."""
        few = 2 * sum(map(len, guesses)) < max(1, sum(lengths))
        if few or len(lines) > MOST_LINES:
            return False
        if self._starter.draft is None:
            lengths = self._filled(lines, lengths)
        least = max(1, self._speculation.least)
        self._rounds = self._starter.start(lines, lengths, least, sampling)
        if self._rounds is None:
            return False
        self._lines, self._lengths, self._depth = [*lines], [*lengths], max(lengths)
        self._n_tokens = [len(line.tokens) for line in lines]
        self._room = [line.most for line in lines]
        self._n_sure = self._pace.trying() if self._speculation.adaptive else 0
        return True

    def next(self) -> list[Outcome | None]:
        """Of each line what the next round brought; None where it has ended. Raises what the device
        does; nothing is on its way then."""
        rounds, self._rounds = self._rounds, None  # should this be interrupted
        assert rounds is not None
        found = [
            f if line is not None else None
            for line, f in zip(self._lines, rounds.round(), strict=True)
        ]
        self._rounds = rounds
        n_guessed = 0
        for i, (line, f) in enumerate(zip(self._lines, found, strict=True)):
            if line is None or f is None:
                continue
            n_guessed += f.n_guessed
            self._n_tokens[i] += len(f.tokens)
            self._room[i] -= len(f.tokens)
            self._starter.took(line.key, line.seq, self._n_tokens[i], f.tokens)
            if f.n_guessed > 0:
                self._pace.outcome(line.key, f.n_guessed, len(f.tokens) - 1)
        if 2 * n_guessed < sum(self._lengths) or not self._is_right(rounds.taken):
            rounds.stop()
        if rounds.is_over:
            n_rows = len(self._lines) + sum(self._lengths)
            drafting = rounds.taken * self._depth * self._draft_s()
            self._times.ran(n_rows, max(0.0, rounds.seconds - drafting), rounds.taken, follow=True)
            self._rounds = None
        return found

    def forget(self, keys: set[int]) -> None:
        """These lines have ended. No more rounds are started once all have."""
        for i, line in enumerate(self._lines):
            if line is not None and line.key in keys:
                self._lines[i] = None
        if not any(self._lines):
            self.stop()

    def stop(self) -> None:
        """Start no more rounds."""
        if self._rounds is not None:
            self._rounds.stop()

    def drop(self) -> None:
        """Take none that are on their way."""
        if self._rounds is not None:
            self._rounds = None
            self._starter.forget()

    # -- inside ----------------------------------------------------------------------------------

    def _draft_s(self) -> float:
        """What a draft's step takes."""
        draft = self._starter.draft
        return 0.0 if draft is None else draft.seconds(len(self._lines))

    def _filled(self, lines: Sequence[Line], lengths: Sequence[int]) -> list[int]:
        """More guesses, for the rows that the plan has anyway."""
        n, most = len(lines), self._speculation.most
        spare = self._buckets.checked(n + sum(lengths)) - n - sum(lengths)
        room = [min(most, line.most - 1) for line in lines]
        each = spare // n
        return [max(k, min(k + each, m)) for k, m in zip(lengths, room, strict=True)]

    def _is_right(self, n_rounds: int) -> bool:
        """Whether as many guesses as these would be asked for now."""
        if not self._speculation.adaptive or n_rounds < self._n_sure:
            return True
        alive = [i for i, line in enumerate(self._lines) if line is not None]
        if not alive:
            return False
        keys = [line.key for line in self._lines if line is not None]
        room, asked = [self._room[i] - 1 for i in alive], sum(self._lengths[i] for i in alive)
        by = CHANGE if n_rounds >= LEAST_ROUNDS else math.inf
        return self._pace.pays(keys, room, self._draft_s(), asked, by)
