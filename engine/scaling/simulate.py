"""A pipeline by discrete events: stages with a queue each, pieces that go from one to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from gguflow.engine.dataclass import dataclass

_ARRIVES, _LEAVES = 0, 1


@dataclass(frozen=True)
class Passed:
    """seconds: until the last piece was done. busy: by stage, the share of them it worked.
    done: seconds at which each piece was done for the last time."""

    seconds: float
    busy: tuple[float, ...]
    done: tuple[float, ...]


def run_pipeline(pieces: Sequence[Sequence[float]], hop: float, rounds: int = 1) -> Passed:
    """Let pieces go through the stages in order, all there from the beginning.

    pieces: seconds of each piece in each stage. hop: seconds from a stage to the next, and after
    the last one back to the first, during which no stage is busy with the piece. rounds: how often
    each goes around, a token of its sequences each time.
    """
    n_stages = len(pieces[0]) if pieces else 0
    if not n_stages or any(len(p) != n_stages for p in pieces) or rounds < 1:
        raise ValueError("expected pieces with the same stages, and a round at least")
    waiting: list[deque[int]] = [deque() for _ in range(n_stages)]
    working = [False] * n_stages
    worked = [0.0] * n_stages
    left, done = [rounds] * len(pieces), [0.0] * len(pieces)
    events: list[tuple[float, int, int, int, int]] = []
    n_events = 0

    def at(time: float, kind: int, piece: int, stage: int) -> None:
        nonlocal n_events
        n_events += 1  # equal times in the order they were made: the same result every time
        heappush(events, (time, n_events, kind, piece, stage))

    for p in range(len(pieces)):
        at(0.0, _ARRIVES, p, 0)
    while events:
        now, _, kind, p, stage = heappop(events)
        if kind == _ARRIVES:
            waiting[stage].append(p)
        else:
            working[stage] = False
            done[p] = now
            if stage + 1 < n_stages:
                at(now + hop, _ARRIVES, p, stage + 1)
            else:
                left[p] -= 1
                if left[p]:
                    at(now + (hop if n_stages > 1 else 0.0), _ARRIVES, p, 0)
        if waiting[stage] and not working[stage]:
            p = waiting[stage].popleft()
            working[stage] = True
            worked[stage] += pieces[p][stage]
            at(now + pieces[p][stage], _LEAVES, p, stage)
    end = max(done)
    return Passed(end, tuple(w / end if end else 0.0 for w in worked), tuple(done))
