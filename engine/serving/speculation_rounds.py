"""Rounds of guesses that follow each other on a device: it checks, takes what came true and guesses
again; the host reads behind. A round's run need not wait for what the host does between two.

The device looks n-grams up as `speculation_lookup` does, or runs a draft, or takes guesses that
were prepared.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from gguflow.engine.ahead import Ahead
from gguflow.engine.backends.base import RoundLoop, RoundMemory
from gguflow.engine.dataclass import dataclass
from gguflow.engine.runtime import BoundPlan

from .runner import Runner, Sampling
from .speculation import Line, Prepared
from .speculation_draft import DraftModel
from .speculation_rows import verify_rows

MOST_TOKENS = 256  # of a sequence, for which pages are set aside at a time


@dataclass(frozen=True)
class Outcome:
    """What a round brought a sequence. n_guessed: guesses that were checked."""

    tokens: list[int]
    n_guessed: int


class Rounds(Ahead):
    """The next rounds of some sequences.

    Rounds run beyond a stop write rows of the KV cache as those of `Ahead` do.
    """

    def __init__(
        self, loop: RoundLoop, n_rows: Sequence[int], room: Sequence[int], ends: Sequence[bool]
    ) -> None:
        """loop: its inputs are written. n_rows: of each sequence. room: tokens that each may get,
        for which the page tables have pages. ends: whether it gets no more than that at all."""
        super().__init__(loop, max(room))
        self._began = time.perf_counter()  # capturing is not counted
        self._ends = np.cumsum(n_rows)
        self._longest = max(n_rows)
        self._room, self._is_last = np.array(room), np.array(ends)

    def round(self) -> list[Outcome]:
        """Of each sequence, in their order. Its tokens are none once it has as many as it may get.
        Once all have, or one that needs more pages, no more rounds are started."""
        left = self._room.max() if self._is_last.all() else self._room[~self._is_last].min()
        # Those on their way may bring all that is left: then another one would be for nothing.
        most = -(-int(left) // self._longest)
        parts = np.split(self.next(max(1, most)), self._ends)
        found = [Outcome(x[x >= 0].tolist(), max(0, int((x != -1).sum()) - 1)) for x in parts[:-1]]
        self._room -= [len(f.tokens) for f in found]
        waits = (self._room <= 0) & ~self._is_last
        if waits.any() or self._room.max() <= 0:
            self.stop()
        return found


class RoundStarter:
    """Starts rounds over a runner's sequences. prepared: what guesses, where that is known
    beforehand. draft: guesses otherwise, or is run for its time; without both texts are looked up.
    """

    def __init__(
        self, runner: Runner, prepared: Prepared | None, draft: DraftModel | None = None
    ) -> None:
        self._runner, self._prepared, self.draft = runner, prepared, draft
        self._keep: RoundMemory | None = None
        self._known: dict[int, tuple[int, int]] = {}  # by text: whose, and how many tokens of it

    def start(
        self, lines: Sequence[Line], lengths: Sequence[int], least: int, sampling: Sampling
    ) -> Rounds | None:
        """Rounds of up to so many guesses of each line, none of fewer than `least`; None where the
        device cannot make them or has no pages for several. sampling: as in `Speculator.step`."""
        kv = self._runner.kv
        seqs = [line.seq for line in lines]
        n_rows = [1 + n for n in lengths]
        bound = self._plan(len(lines), sum(n_rows))
        if bound is None:
            return None
        most = MOST_TOKENS
        while (room := self._room(lines, n_rows, most)) and not kv.grow_all(seqs, room):
            most //= 2
        if not room:
            return None
        places = [len(line.tokens) - 1 for line in lines]
        ends = [place + n for place, n in zip(places, room, strict=True)]
        drafts = () if self.draft is None else self.draft.follow(lines, ends, sampling)
        loop = None if drafts is None else bound.round_loop(self._kept(bound), drafts)
        if loop is None:
            return None
        loop.depth = max(lengths) if drafts else 0
        runs = [[line.tokens[-1]] * n for line, n in zip(lines, n_rows, strict=True)]
        rows = verify_rows(np.array(seqs, np.int64), places, runs)
        each = Sampling(*(np.repeat(x, n_rows, axis=0) for x in sampling))
        self._runner.write(rows, each)
        self._write(lines, n_rows, ends, least)
        is_last = [n == line.most for n, line in zip(room, lines, strict=True)]
        return Rounds(loop, n_rows, room, is_last)

    def _room(self, lines: Sequence[Line], n_rows: Sequence[int], most: int) -> list[int]:
        """Tokens that each may get, `most` if there are as many left; none where that is less than
        two rounds of half of them."""
        room = [min(most, line.most) for line in lines]
        n_long = sum(m >= 2 * n for m, n in zip(room, n_rows, strict=True))
        return room if 2 * n_long >= len(room) and most >= 2 * max(n_rows) else []

    def took(self, key: int, seq: int, n: int, tokens: Sequence[int]) -> None:
        """A line has so many tokens now, all of which the device has in its text, and these are the
        last of them."""
        self._known[seq] = key, n
        if self.draft is not None:
            self.draft.brought(key, tokens)

    def forget(self) -> None:
        """Texts may have other tokens than the device has."""
        self._known.clear()

    def _plan(self, n_lines: int, n_rows: int) -> BoundPlan | None:
        """That with so many rows, where one device computes it."""
        key = self._runner.buckets.key(n_rows, 0, n_lines, n_rows, False, True)
        bound = self._runner.plan(key)
        return bound if len(bound.plan.segments) == 1 else None

    def _kept(self, bound: BoundPlan) -> RoundMemory:
        if self._keep is None:
            self._keep = self._made(bound.plan.segments[0].backend)
        return self._keep

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
            self._known[line.seq] = line.key, length
            numbers[i, :6] = first[i], n_rows[i], length, ends[i], least, line.seq
        numbers[len(lines) :, 0] = first[-1]
        keep.lines.write(0, numbers)
