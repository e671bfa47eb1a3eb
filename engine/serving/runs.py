"""The runs of a step: one, or one after the other where devices hold layers in turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .kv import KvCache
from .request import Job
from .rows import Piece, Rows, rows_of, side_by_side, single_rows
from .scheduler import Batch


def runs_of(kv: KvCache, batch: Batch, most: int) -> list[Rows]:
    """The rows of a batch with prompts, up to `most` of them a run. Generated tokens, and all rows
    with an output, are in the last."""
    lengths = [n for _, n in batch.chunks]
    ends = [n == job.n_new for job, n in batch.chunks]
    pieces: list[list[Piece]] = []
    for run in in_runs(lengths, ends, most):
        pieces.append([])
        for i, start, end in run:
            job, _ = batch.chunks[i]
            ids = job.tokens[job.n_rows + start : job.n_rows + end]
            n_out = len(ids) if job.wants_rows else int(end == job.n_new)
            pieces[-1].append(Piece(job.place, ids, n_out, ahead=start))
    *first, last = (rows_of(kv, run) for run in pieces)
    if batch.singles:
        last = side_by_side(generated_rows(batch.singles), last)
    return [*first, last]


def generated_rows(jobs: Sequence[Job]) -> Rows:
    """The last token of each."""
    return single_rows(
        np.array([job.place for job in jobs]),
        np.array([job.tokens[-1] for job in jobs]),
        np.array([job.n_rows for job in jobs]),
    )


def in_runs(
    lengths: Sequence[int], ends: Sequence[bool], most: int
) -> list[list[tuple[int, int, int]]]:
    """Pieces of prompts cut into as few runs as hold them, of up to `most` rows each: of every run
    which piece, and its tokens from and to. ends: whether the last token of a piece has an output,
    as rows of the last run alone do; there are at most `most`."""
    n_runs = max(1, -(-sum(lengths) // most))
    left = (n_runs - 1) * most  # rows of the runs before the last
    runs: list[list[tuple[int, int, int]]] = [[]]
    room, done = most, [0] * len(lengths)
    for i, (n, ends_here) in enumerate(zip(lengths, ends, strict=True)):
        while left and (take := min(n - ends_here - done[i], room)):
            runs[-1].append((i, done[i], done[i] + take))
            done[i], room, left = done[i] + take, room - take, left - take
            if not room:
                runs.append([])
                room = most
    if runs[-1]:
        runs.append([])
    runs[-1] += [(i, done[i], n) for i, n in enumerate(lengths) if done[i] < n]
    return runs
