"""Closed formulas of pipelines: s stages, m pieces that follow each other."""

from __future__ import annotations

from collections.abc import Sequence


def bubbles(n_stages: int, n_pieces: int) -> float:
    """The share of their time that equal stages wait: (s - 1) / (m + s - 1)."""
    return (n_stages - 1) / (n_pieces + n_stages - 1)


def pass_seconds(stages: Sequence[float], n_pieces: int, hop: float) -> float:
    """Until n_pieces equal pieces have gone through stages of these seconds. hop: from a stage to
    the next, during which both can work."""
    return sum(stages) + hop * (len(stages) - 1) + (n_pieces - 1) * max(stages)


def round_seconds(stages: Sequence[float], n_groups: int, hop: float) -> float:
    """A token's time of n_groups of sequences that go around: one can begin its next token when it
    has come back, and when the slowest stage is done with all others."""
    around = sum(stages) + hop * (len(stages) if len(stages) > 1 else 0)
    return max(around, n_groups * max(stages))
