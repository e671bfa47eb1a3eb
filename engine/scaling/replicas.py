"""Replicas by discrete events: requests that come at random, queues, batches that are stepped.

A replica takes the requests that wait when a step begins, as far as it has places; the step
computes their prompts and a token of each sequence. A request goes to the replica with the fewest
requests; equals take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random

from gguflow.engine.dataclass import dataclass, field

_ARRIVES, _STEPPED = 0, 1


@dataclass(frozen=True)
class Service:
    """What a replica takes. step: seconds of a token of so many sequences. prompt: seconds of a
    request's prompt. n_tokens: that a request generates; the first comes out of its prompt.
    places: sequences at once."""

    step: Callable[[int], float]
    prompt: float
    n_tokens: int
    places: int

    def capacity(self) -> float:
        """Tokens a second of a replica whose places are never free: each request takes its
        prompt's time and its share of n_tokens - 1 full steps. The closed formula."""
        seconds = self.prompt * self.places + (self.n_tokens - 1) * self.step(self.places)
        return self.places * self.n_tokens / seconds


@dataclass(frozen=True)
class Served:
    """tokens: a second, all replicas together, from the first arrival to the last token. busy: the
    share of the time they stepped. first: seconds to each request's first token, ascending."""

    tokens: float
    busy: float
    first: tuple[float, ...]

    def first_at(self, share: float) -> float:
        """Seconds to the first token that this share of requests had to wait at most."""
        return self.first[min(int(share * len(self.first)), len(self.first) - 1)]


@dataclass
class _Replica:
    waiting: deque[int] = field(default_factory=deque)
    new: list[int] = field(default_factory=list)
    running: list[list[int]] = field(default_factory=list)  # [tokens left]
    stepping: bool = False
    worked: float = 0.0

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.new) + len(self.running)


def arrivals(n: int, rate: float, seed: int = 0) -> list[float]:
    """Seconds at which n requests come, at random, `rate` a second on average (Poisson)."""
    random, now, found = Random(seed), 0.0, list[float]()
    for _ in range(n):
        now += random.expovariate(rate)
        found.append(now)
    return found


def run_replicas(n: int, service: Service, times: Sequence[float]) -> Served:
    """Serve requests that come at these times, ascending, by n replicas."""
    if n < 1 or not times:
        raise ValueError("expected a replica and a request at least")
    replicas = [_Replica() for _ in range(n)]
    events: list[tuple[float, int, int, int]] = [(t, i, _ARRIVES, i) for i, t in enumerate(times)]
    first = [0.0] * len(times)
    n_events, turn, end = len(times), 0, 0.0

    def begin(i: int, now: float) -> None:
        nonlocal n_events
        r = replicas[i]
        while r.waiting and len(r.new) + len(r.running) < service.places:
            r.new.append(r.waiting.popleft())
        if not r.new and not r.running:
            return
        took = service.prompt * len(r.new)
        took += service.step(len(r.running)) if r.running else 0.0
        r.stepping, r.worked, n_events = True, r.worked + took, n_events + 1
        heappush(events, (now + took, n_events, _STEPPED, i))

    while events:
        now, _, kind, i = heappop(events)
        if kind == _ARRIVES:
            order = [(turn + k) % n for k in range(n)]
            at = min(order, key=lambda k: replicas[k].load)
            turn = (at + 1) % n
            replicas[at].waiting.append(i)
            if not replicas[at].stepping:
                begin(at, now)
            continue
        r = replicas[i]
        r.stepping, end = False, now
        for left in r.running:
            left[0] -= 1
        r.running = [left for left in r.running if left[0]]
        for request in r.new:
            first[request] = now - times[request]
            if service.n_tokens > 1:
                r.running.append([service.n_tokens - 1])
        r.new = []
        begin(i, now)
    span = end - times[0]
    busy = sum(r.worked for r in replicas) / (n * span)
    return Served(len(times) * service.n_tokens / span, busy, tuple(sorted(first)))
