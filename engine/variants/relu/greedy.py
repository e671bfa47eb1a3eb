"""The greedy placement: always the step that saves the most time a byte, while the budget lasts.

Steps run along the lower convex hull of each layer's (bytes, seconds) choices, which is the optimum
of the relaxed problem (Sinha and Zoltners 1979, the multiple-choice knapsack); what is left of the
budget then goes to single improvements.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from .costs import LayerCosts


def solve_greedy(layers: Sequence[LayerCosts], budget: int) -> list[int]:
    """The groups on the device by layer; a choice within `budget` bytes always exists (none)."""
    chosen = [0] * len(layers)
    left = budget
    steps = [s for i, layer in enumerate(layers) for s in _next_step(layer, i, 0)]
    heapify(steps)
    while steps:
        _, i, g = heappop(steps)
        layer = layers[i]
        more = int(layer.n_bytes[g] - layer.n_bytes[chosen[i]])
        if more > left:
            continue  # this layer's hull is done; the others' next steps may still fit
        left -= more
        chosen[i] = g
        for s in _next_step(layer, i, g):
            heappush(steps, s)
    while best := _best_that_fits(layers, chosen, left):
        i, g = best
        left -= int(layers[i].n_bytes[g] - layers[i].n_bytes[chosen[i]])
        chosen[i] = g
    return chosen


def _next_step(layer: LayerCosts, i: int, at: int) -> list[tuple[float, int, int]]:
    """(seconds a byte, negative for a gain; layer; choice) of the hull's next point, if there is
    one that is faster."""
    seconds = layer.seconds[at + 1 :] - layer.seconds[at]
    n_bytes = layer.n_bytes[at + 1 :] - layer.n_bytes[at]
    better = seconds < 0
    if not better.any():
        return []
    # The last group of a layer may cost nothing or less: its list of ids is no longer needed.
    rate = seconds[better] / n_bytes[better].clip(min=1)
    best = rate.argmin()
    return [(float(rate[best]), i, at + 1 + int(better.nonzero()[0][best]))]


def _best_that_fits(
    layers: Sequence[LayerCosts], chosen: Sequence[int], left: int
) -> tuple[int, int] | None:
    """The (layer, choice) that saves the most time with the bytes left."""
    best, found = 0.0, None
    for i, (layer, at) in enumerate(zip(layers, chosen, strict=True)):
        fits = layer.n_bytes <= layer.n_bytes[at] + left
        gain = (layer.seconds[at] - layer.seconds) * fits
        g = int(gain.argmax())
        if gain[g] > best:
            best, found = float(gain[g]), (i, g)
    return found
