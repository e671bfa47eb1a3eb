"""How pieces are given out to devices: whole ones, in the proportions asked for."""

from __future__ import annotations

from collections.abc import Sequence


def shares(pieces: int, ratios: Sequence[float]) -> tuple[int, ...]:
    """Pieces for each device in these proportions, as a running sum from 0; every device has one
    at least, for which there must be enough of them."""
    left, total, bounds = len(ratios), sum(ratios), [0]
    for k in range(1, len(ratios)):
        left -= 1
        wanted = round(pieces * sum(ratios[:k]) / total)
        bounds.append(min(max(wanted, bounds[-1] + 1), pieces - left))
    return (*bounds, pieces)
