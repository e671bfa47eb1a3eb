"""Rounds of guesses that follow each other on a device: it checks, takes what came true and guesses
again; the host reads behind. A round's run need not wait for what the host does between two.

The device looks n-grams up as `speculation_lookup` does, or takes guesses that were prepared.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from gguflow.engine.ahead import Ahead
from gguflow.engine.backends.base import RoundMemory, TokenLoop
from gguflow.engine.dataclass import dataclass

from .runner import Runner, Sampling
from .speculation import Line, Prepared
from .speculation_rows import verify_rows

MOST_TOKENS = 128  # of a sequence, for which pages are set aside at a time


@dataclass(frozen=True)
class Outcome:
    """What a round brought a sequence. n_guessed: guesses that were checked."""

    tokens: list[int]
    n_guessed: int


class Rounds(Ahead):
    """The next rounds of some sequences.

    Rounds run beyond a stop write rows of the KV cache as those of `Ahead` do.
    """

    def __init__(self, loop: TokenLoop, n_rows: Sequence[int], most: int) -> None:
        """loop: its inputs are written. n_rows: of each sequence. most: tokens that each may get,
        for which the page tables have pages."""
        super().__init__(loop, most)
        self._began = time.perf_counter()  # capturing is not counted
        self._ends = np.cumsum(n_rows)
        self._longest = max(n_rows)
        self._room = np.full(len(n_rows), most)

    def round(self) -> list[Outcome]:
        """Of each sequence, in their order. Its tokens may be none once another one has as many as
        it may get; then no more rounds are started."""
        # Those on their way may bring all that is left: then another one would be for nothing.
        most = -(-int(self._room.min()) // self._longest)
        parts = np.split(self.next(most), self._ends)
        found = [Outcome(x[x >= 0].tolist(), max(0, int((x != -1).sum()) - 1)) for x in parts[:-1]]
        self._room -= [len(f.tokens) for f in found]
        if self._room.min() <= 0:
            self.stop()
        return found


class RoundStarter:
    """Starts rounds over a runner's sequences. prepared: what guesses, where that is known
    beforehand; otherwise texts are looked up."""

    def __init__(self, runner: Runner, prepared: Prepared | None) -> None:
        self._runner, self._prepared = runner, prepared
        self._keep: RoundMemory | None = None
        self._known: dict[int, tuple[int, int]] = {}  # by text: whose, and how many tokens of it

    def start(
        self, lines: Sequence[Line], lengths: Sequence[int], least: int, sampling: Sampling
    ) -> Rounds | None:
        """Rounds of up to so many guesses of each line, none of fewer than `least`; None where the
        device cannot make them or has no pages for several. sampling: as in `Speculator.step`."""
        kv = self._runner.kv
        seqs = [line.seq for line in lines]
        most = min(MOST_TOKENS, *(line.most for line in lines))
        n_rows = [1 + n for n in lengths]
        if most < 2 * max(n_rows) or (loop := self._loop(len(lines), sum(n_rows))) is None:
            return None
        while most >= 2 * max(n_rows) and not kv.grow_all(seqs, most):
            most //= 2
        if most < 2 * max(n_rows):
            return None
        places = [len(line.tokens) - 1 for line in lines]
        runs = [[line.tokens[-1]] * n for line, n in zip(lines, n_rows, strict=True)]
        rows = verify_rows(np.array(seqs, np.int64), places, runs)
        each = Sampling(*(np.repeat(x, n_rows, axis=0) for x in sampling))
        self._runner.write(rows, each)
        self._write(lines, n_rows, [place + most for place in places], least)
        return Rounds(loop, n_rows, most)

    def took(self, line_key: int, seq: int, n: int) -> None:
        """A line has so many tokens now, all of which the device has in its text."""
        self._known[seq] = line_key, n

    def forget(self) -> None:
        """Texts may have other tokens than the device has."""
        self._known.clear()

    def _loop(self, n_lines: int, n_rows: int) -> TokenLoop | None:
        """That of the plan with so many rows."""
        key = self._runner.buckets.key(n_rows, 0, n_lines, n_rows, False, True)
        bound = self._runner.plan(key)
        if len(bound.plan.segments) != 1:
            return None
        if self._keep is None:
            self._keep = self._made(bound.plan.segments[0].backend)
        return bound.round_loop(self._keep)

    def _made(self, name: str) -> RoundMemory:
        runner = self._runner
        backend, n_seqs = runner.model.backends[name], runner.model.options.n_seqs
        capacity = runner.model.options.n_ctx + 1
        nbytes = 4 * n_seqs * capacity
        lines = backend.alloc(4 * n_seqs * len(RoundMemory.LINE))
        prepared = None if self._prepared is None else backend.alloc(nbytes)
        return RoundMemory(lines, backend.alloc(nbytes), capacity, prepared)

    def _write(
        self, lines: Sequence[Line], n_rows: Sequence[int], ends: Sequence[int], least: int
    ) -> None:
        """Bring to the device what it lacks of the texts, and where the lines stand."""
        keep = self._keep
        assert keep is not None
        numbers = np.zeros((keep.lines.nbytes // (4 * len(keep.LINE)), len(keep.LINE)), np.int32)
        first = np.cumsum([0, *n_rows])
        for i, line in enumerate(lines):
            length, at = len(line.tokens), line.seq * keep.capacity
            key, known = self._known.get(line.seq, (line.key, 0))
            if key != line.key:
                known = 0
            if known < length:
                keep.texts.write(4 * (at + known), np.array(line.tokens[known:], np.int32))
            if keep.prepared is not None and not known and self._prepared is not None:
                table = np.full(keep.capacity, -1, np.int32)
                made = self._prepared.prepared(line)[: keep.capacity]
                table[: len(made)] = made
                keep.prepared.write(4 * at, table)
            self.took(line.key, line.seq, length)
            numbers[i, :6] = first[i], n_rows[i], length, ends[i], least, line.seq
        numbers[len(lines) :, 0] = first[-1]
        keep.lines.write(0, numbers)
