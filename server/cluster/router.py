"""Which replica a request goes to: the one that will have computed its prompt first.

A replica's cache holds pages under hashes of all tokens up to their end (`KvCache.chain`). The
router remembers which of them each replica was given, as many as its cache has pages, the latest
ones. What a request has to wait for is then known well enough: the tokens of its prompt that are
not there, those of prompts before it, and a step's share for every sequence that generates.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.plan_key import PAGE
from gguflow.engine.serving.pages import page_hashes

SEQUENCE = PAGE  # tokens of a prompt that a sequence which generates holds a newcomer up for
NO_PLACE = 32 * PAGE  # the same for every request before it, where all places are taken


@dataclass
class _Known:
    """What the router knows of a replica. n_active: requests there. n_prompt: tokens of the prompts
    among them that have no answer yet."""

    n_seqs: int
    n_pages: int
    pages: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    n_active: int = 0
    n_prompt: int = 0

    def n_found(self, hashes: Sequence[bytes]) -> int:
        n = 0
        while n < len(hashes) and hashes[n] in self.pages:
            n += 1
        return n

    def learn(self, hashes: Sequence[bytes]) -> None:
        for key in reversed(hashes):  # the first pages are let go last
            self.pages[key] = None
            self.pages.move_to_end(key)
        while len(self.pages) > self.n_pages:
            self.pages.popitem(last=False)


@dataclass(eq=False)
class Route:
    """A request on its way. replica: where to. n_prompt: tokens that are to be computed there."""

    replica: Hashable
    n_found: int
    n_prompt: int
    begun: bool = False


class Router:
    """Replicas by a key, which none has again that comes in the place of a lost one. Bookkeeping
    alone."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Known] = {}
        self._turn = 0

    @property
    def replicas(self) -> list[Hashable]:
        """Those there are."""
        return list(self._known)

    def add(self, replica: Hashable, n_seqs: int, n_pages: int) -> None:
        """A replica with an empty cache of n_pages pages, for n_seqs sequences at once."""
        self._known[replica] = _Known(n_seqs, n_pages)

    def remove(self, replica: Hashable) -> None:
        """It is gone, and its cache with it."""
        self._known.pop(replica, None)

    def choose(self, ids: Sequence[int], salt: bytes = b"") -> Route:
        """Where a request goes; it counts there until `end`. Raises LookupError without any."""
        if not self._known:
            raise LookupError("there is no replica")
        hashes = page_hashes(ids, salt)
        turn = self._turn = self._turn + 1
        order = list(self._known.items())

        def cost(at: int) -> tuple[int, int]:
            known = order[at][1]
            waiting = max(0, known.n_active + 1 - known.n_seqs)
            missing = len(ids) - PAGE * known.n_found(hashes)
            ahead = known.n_prompt + SEQUENCE * known.n_active + NO_PLACE * waiting
            return missing + ahead, (at - turn) % len(order)  # equals take turns

        name, known = order[min(range(len(order)), key=cost)]
        n_found = known.n_found(hashes)
        known.learn(hashes)
        route = Route(name, n_found, len(ids) - PAGE * n_found)
        known.n_active += 1
        known.n_prompt += route.n_prompt
        return route

    def begun(self, route: Route) -> None:
        """Its first token has come: the prompt is computed."""
        known = self._known.get(route.replica)
        if known is not None and not route.begun:
            known.n_prompt -= route.n_prompt
        route.begun = True

    def end(self, route: Route) -> None:
        """It is over, one way or the other."""
        known = self._known.get(route.replica)
        if known is None:
            return
        self.begun(route)
        known.n_active -= 1
