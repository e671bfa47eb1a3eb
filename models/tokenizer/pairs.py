"""Greedy merges of neighbours, which both kinds of byte-pair vocabularies are made for."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

# What two symbols become, if anything: (order, symbol); the lowest order comes first.
Find = Callable[[int, int], tuple[float, int] | None]


def merged(ids: list[int], find: Find) -> list[int]:
    """Symbols (not negative) after the pair of the lowest order, the leftmost of equals, has been
    merged until there is none."""
    n = len(ids)
    before, after = list(range(-1, n - 1)), list(range(1, n + 1))
    ids = [*ids, -1]
    queue = []
    for i in range(n - 1):
        if (found := find(ids[i], ids[i + 1])) is not None:
            queue.append((found[0], i, found[1], ids[i], ids[i + 1]))
    heapify(queue)
    while queue:
        _, i, made, left, right = heappop(queue)
        j = after[i]
        if ids[i] != left or j >= n or ids[j] != right:
            continue  # one of them is part of another by now
        ids[i], ids[j] = made, -1
        after[i] = k = after[j]
        if k < n:
            before[k] = i
            if (found := find(made, ids[k])) is not None:
                heappush(queue, (found[0], i, found[1], made, ids[k]))
        h = before[i]
        if h >= 0 and (found := find(ids[h], made)) is not None:
            heappush(queue, (found[0], h, found[1], ids[h], made))
    return [i for i in ids if i >= 0]
