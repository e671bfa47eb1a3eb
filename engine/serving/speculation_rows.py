"""The rows of a run that checks guesses, and what follows from it.

A guess has a row of its own behind that of the sequence's last token, of the kind that generated
tokens have: each sees the rows of those before it, which the same run writes before it reads any.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .rows import Rows
from .runner import Results, Sampling
from .speculation import Pick


def verify_rows(
    seqs: np.ndarray,
    positions: Sequence[int],
    runs: Sequence[Sequence[int]],
    outputs: bool = True,
) -> Rows:
    """Rows of tokens that follow each other in some sequences, each with an output or none.

    seqs: int [m]. positions: of each sequence's first token. runs: its last token and the guesses.
    """
    lengths = [len(run) for run in runs]
    n = sum(lengths)
    starts = np.repeat(positions, lengths)
    return Rows(
        np.concatenate([np.asarray(run, np.int64) for run in runs]),
        starts + _places(lengths),
        np.repeat(np.arange(len(runs)), lengths),
        seqs,
        n,
        np.arange(n if outputs else 0),
    )


def verify_sampling(sampling: Sampling, runs: Sequence[Sequence[int]]) -> Sampling:
    """The operands of the draws after each of those tokens. sampling: of the next draw of each
    sequence; later ones have later numbers of the same stream, and the guesses in their history."""
    lengths = [len(run) for run in runs]
    settings, rng, history = (np.repeat(x, lengths, axis=0) for x in sampling)
    place = _places(lengths)
    rng[:, 1] += place
    end = 0
    for run, length in zip(runs, lengths, strict=True):
        for i in range(1, length):
            row = history[end + i]
            row[:-i] = row[i:].copy()
            row[-i:] = run[1 : i + 1][-len(row) :]
        end += length
    return Sampling(settings, rng, history)


def next_draws(sampling: Sampling, tokens: np.ndarray) -> Sampling:
    """The operands of the draws after these tokens, one for each sequence."""
    settings, rng, history = sampling
    rng = rng + np.array([0, 1])
    history = np.concatenate([history[:, 1:], tokens[:, None].astype(history.dtype)], axis=1)
    return Sampling(settings, rng, history)


def accepted(
    results: Results, runs: Sequence[Sequence[int]], picks: Sequence[Pick | None]
) -> list[list[int]]:
    """What the sequences go on with: of each the tokens chosen, up to the first one that was not
    guessed. results: a row after each token of the runs. picks: as in `Speculator.step`."""
    found, begin = [], 0
    chosen = results[-1].tolist()
    for run, pick in zip(runs, picks, strict=True):
        mine: list[int] = []
        for i in range(len(run)):
            at = begin + i
            mine.append(chosen[at] if pick is None else pick(results.row(-2, at), mine))
            if i + 1 < len(run) and mine[i] != run[i + 1]:
                break
        begin += len(run)
        found.append(mine)
    return found


def _places(lengths: Sequence[int]) -> np.ndarray:
    """0, 1, .. for each run."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
