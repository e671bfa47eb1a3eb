"""Guesses by a smaller model with the same vocabulary.

It draws with the request's own settings and random numbers: where both models agree about what is
likely, the same number picks the same token, at any temperature.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gguflow.engine.ahead import Ahead
from gguflow.engine.dataclass import dataclass, field

from .pages import OutOfPages
from .rows import Piece, rows_of, single_rows
from .runner import Results, Runner, Sampling
from .speculation import Line, rows_to_check
from .speculation_pace import Clock
from .speculation_rows import next_draws, verify_rows

if TYPE_CHECKING:
    from gguflow.engine.model import Model
    from gguflow.engine.runtime import BoundPlan

FEW = 4  # missing rows of a line that are computed along with its first guess
NEVER = 1 << 40  # tokens


@dataclass
class _State:
    """A line in the draft's cache. ahead: tokens whose rows are there, though the cache was not
    told: the line's last one in the round before, and what was guessed after it. n_ahead: how many
    tokens a recurrent state has seen since, which was marked after the first of them. taken: in
    rounds that a device makes by itself, the line's last token before them and what they brought.
    """

    seq: int
    ahead: list[int] = field(default_factory=list)
    n_ahead: int = 0
    taken: list[int] = field(default_factory=list)


class DraftModel:
    """A drafter that runs a model, with a KV cache of its own.

    n_vocab: of the model that is drafted for. p_min: where the draft gives less probability to a
    token, it and those after it are not guessed.
    """

    def __init__(self, draft: Model, model: Model, p_min: float = 0.0) -> None:
        o = model.options
        own = draft.options
        if (own.n_seqs, own.n_ctx, own.n_cache) != (o.n_seqs, o.n_ctx, o.n_cache):
            draft = draft.with_options(n_seqs=o.n_seqs, n_ctx=o.n_ctx, n_cache=o.n_cache)
        self._runner = Runner(draft, n_verify=rows_to_check(o.n_seqs, FEW - 1))
        self._kv = self._runner.kv
        if self._kv.states is not None:
            self._kv.states.every = NEVER  # states run ahead of what the cache is told
        self._n_ctx, self._n_ubatch = o.n_ctx, draft.options.n_ubatch
        self._n_vocab, self._n_model = draft.hp.n_vocab, model.hp.n_vocab
        self._n_shared = min(self._n_vocab, self._n_model)
        self._p_min = p_min
        self.took = 0.0
        self._caught_up = False  # whether prompts were computed in the last round
        self._n_deep = 0  # rows of the last round that followed those that were missing, and one
        self._lines: dict[int, _State] = {}
        self._clock = Clock(self._runner.is_host)  # of one more guess, by lines
        self._steps = Clock(True)  # the same of steps that follow each other on a device
        self._follows = False  # whether they did so last, and the rounds that check them

    def seconds(self, n_lines: int) -> float:
        known = self._steps.seconds(n_lines) if self._follows else None
        return known or self._clock.seconds(n_lines) or 0.0

    def forget(self, keys: set[int]) -> None:
        for key in keys & self._lines.keys():
            self._kv.free(self._lines.pop(key).seq)

    def draft(
        self, lines: Sequence[Line], lengths: Sequence[int], sampling: Sampling
    ) -> list[list[int]]:
        began = time.perf_counter()
        self.took = 0.0
        found: list[list[int]] = [[] for _ in lines]
        depth = max(lengths, default=0)
        if not depth:
            return found
        self._make_room(lines)
        which = [i for i, n in enumerate(lengths) if n and self._enter(lines[i], depth)]
        if not which:
            return found
        ready = [lines[i] for i in which]
        guesses = self._guess(ready, depth, Sampling(*(x[which] for x in sampling)))
        for line, mine in zip(ready, guesses, strict=True):
            state = self._lines[line.key]
            state.ahead, state.n_ahead = [line.tokens[-1], *mine[:-1]], self._n_deep
        self.took = time.perf_counter() - began
        if not self._caught_up:
            self._clock.add(len(lines), self.took / max(1, *map(len, guesses)))
        for i, mine in zip(which, guesses, strict=True):
            found[i] = mine[: lengths[i]]
        return found

    def pretend(self, lines: Sequence[Line], guesses: Sequence[Sequence[int]]) -> None:
        """As if these had been the guesses of the last round: what its rows then hold is wrong."""
        for line, mine in zip(lines, guesses, strict=True):
            if mine and line.key in self._lines:
                self._lines[line.key].ahead = [line.tokens[-1], *mine[:-1]]

    # -- rounds that a device makes by itself ----------------------------------------------------

    def follow(
        self, lines: Sequence[Line], ends: Sequence[int], sampling: Sampling
    ) -> tuple[BoundPlan, BoundPlan] | None:
        """The plans of the first step of a round and of those that follow, see
        `Program.round_loop`, with their inputs written; None where this draft cannot guess so.

        lines: those of the last call of `draft`. ends: of each the position up to which rounds may
        go. sampling: as there.
        """
        kv, runner = self._kv, self._runner
        self._follows = False
        if self._p_min or kv.states is not None or self._n_vocab != self._n_model:
            return None
        if runner.is_host or 2 * len(lines) > runner.buckets.n_verify:
            return None
        places = [len(line.tokens) - 1 for line in lines]
        states = [self._lines.get(line.key) for line in lines]
        seqs = [s.seq for s, at in zip(states, places, strict=True) if s and kv.length(s.seq) == at]
        if len(seqs) < len(lines) or min(places) < 1:
            return None
        try:
            for seq, place, end in zip(seqs, places, ends, strict=True):
                kv.grow(seq, end - place)
        except OutOfPages:
            return None
        at = np.array(seqs, np.int64)
        last = [line.tokens[-2:] for line in lines]
        two = verify_rows(at, [place - 1 for place in places], last)
        one = single_rows(at, np.array([x[-1] for x in last]), np.array(places))
        for state, (_, token) in zip(states, last, strict=True):
            assert state is not None
            state.ahead, state.taken = [], [token]
        self._follows = True
        twice = Sampling(*(np.repeat(x, 2, axis=0) for x in sampling))
        return runner.write(two, twice), runner.write(one, sampling)

    def brought(self, key: int, tokens: Sequence[int]) -> None:
        """What a round brought a line. Its rows are there but for the last two tokens': the draft
        has not seen a guess that nothing was guessed behind."""
        state = self._lines.get(key)
        if state is not None:
            state.taken += tokens
            state.ahead = state.taken[:-2]

    # -- the cache -------------------------------------------------------------------------------

    def _make_room(self, lines: Sequence[Line]) -> None:
        """Sequences for the lines, from those that have stopped for now."""
        here = {line.key for line in lines}
        if len(here - self._lines.keys()) > self._kv.n_free_seqs:
            self.forget(self._lines.keys() - here)

    def _enter(self, line: Line, depth: int) -> bool:
        """Bring a line's cache up to where its rows are right, with pages for what is missing."""
        kv, tokens = self._kv, line.tokens
        if len(tokens) + depth > self._n_ctx:
            return False
        state = self._lines.get(line.key)
        if state is None:
            state = self._lines[line.key] = _State(kv.create(tokens))
        n_rows = kv.length(state.seq)
        n = 0
        for token in state.ahead:
            if n_rows + n >= len(tokens) - 1 or tokens[n_rows + n] != token:
                break
            n += 1
        if kv.states is not None and n < state.n_ahead:
            # A recurrent state has gone on with wrong guesses: back to before the first of them,
            # or, where the round before came to nothing, to the start.
            if n:
                kv.states.go_back(state.seq)
                n = 1
            else:
                kv.free(state.seq)
                state.seq, n_rows = kv.create(), 0
        kv.advance(state.seq, tokens[n_rows : n_rows + n], True)
        state.ahead, state.n_ahead = [], 0
        if max(tokens[n_rows + n :]) >= self._n_vocab:
            return False
        try:
            kv.grow(state.seq, len(tokens) - n_rows - n + depth)
        except OutOfPages:
            return False
        state.n_ahead = 1  # should the round come to nothing
        return True

    # -- runs ------------------------------------------------------------------------------------

    def _guess(self, lines: Sequence[Line], depth: int, sampling: Sampling) -> list[list[int]]:
        """The next `depth` tokens of each line, or fewer."""
        seqs = np.array([self._lines[line.key].seq for line in lines], np.int64)
        tokens, fits = self._first(lines, seqs, sampling)
        columns, all_fit = [tokens], [fits]
        pos = np.array([len(line.tokens) for line in lines], np.int64)
        if depth > 1 and not self._p_min and self._runner.has_loop(len(lines)):
            sampling = next_draws(sampling, tokens)
            loop = self._runner.write(single_rows(seqs, tokens, pos), sampling).token_loop
            assert loop is not None
            ahead = Ahead(loop, depth - 1)
            while not ahead.is_over:
                columns.append(ahead.next()[: len(lines)])
                all_fit.append(columns[-1] < self._n_shared)
            self._steps.add(len(lines), ahead.seconds / ahead.taken)
        while len(columns) < depth and fits.any():
            sampling = next_draws(sampling, tokens)
            results = self._runner.run(single_rows(seqs, tokens, pos), sampling)
            tokens, fits = self._chosen(results, fits)
            columns.append(tokens)
            all_fit.append(fits)
            pos = pos + 1
        self._n_deep = len(columns)
        n_fit = np.logical_and.accumulate(all_fit, axis=0).sum(axis=0)
        rows = np.stack(columns, axis=1).tolist()
        return [row[:n] for row, n in zip(rows, n_fit.tolist(), strict=True)]

    def _first(
        self, lines: Sequence[Line], seqs: np.ndarray, sampling: Sampling
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute the rows that are missing; the guesses after them, and which of those fit."""
        kv = self._kv
        missing = [line.tokens[kv.length(s) :] for line, s in zip(lines, seqs, strict=True)]
        most = self._runner.buckets.n_verify
        self._caught_up = max(map(len, missing)) > FEW or sum(map(len, missing)) > most
        if self._caught_up:
            for s, ids in zip(seqs.tolist(), missing, strict=True):
                for at in range(0, len(ids) - 1, self._n_ubatch):
                    part = ids[at : min(at + self._n_ubatch, len(ids) - 1)]
                    self._runner.run(rows_of(kv, [Piece(s, part)]))
                    kv.advance(s, part)
            missing = [ids[-1:] for ids in missing]
        lengths = [len(ids) for ids in missing]
        starts = [kv.length(s) for s in seqs.tolist()]
        if max(lengths) == 1:
            rows = single_rows(seqs, np.array([ids[0] for ids in missing]), np.array(starts))
        else:
            rows = verify_rows(seqs, starts, missing)
            # Only a line's last row is drawn after, whose draw comes first in `sampling`.
            sampling = Sampling(*(np.repeat(x, lengths, axis=0) for x in sampling))
        results = self._runner.run(rows, sampling)
        last = np.cumsum(lengths) - 1
        tokens, fits = self._chosen(results, np.ones(len(lines), bool), last)
        for s, ids in zip(seqs.tolist(), missing, strict=True):
            kv.advance(s, ids[:-1], True)
            if kv.states is not None:
                kv.states.mark(s)
        return tokens, fits

    def _chosen(
        self, results: Results, asked: np.ndarray, at: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of a run, of the rows `at` if not of all, and which of those asked for fit:
        the other model has them, and they are as probable as was asked for."""
        which = np.arange(len(asked)) if at is None else at
        tokens = results[-1][which]
        fits = asked & (tokens < self._n_shared)
        if self._p_min:
            logits = results[-2]
            for i in np.flatnonzero(fits).tolist():
                row = logits[which[i]]
                p = np.exp(row[tokens[i]] - row.max()) / np.exp(row - row.max()).sum()
                fits[i] = p >= self._p_min
        return tokens, fits
