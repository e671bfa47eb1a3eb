"""Generated tokens to text that ends before the first stop string."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol


class Decoder(Protocol):
    """Token ids to text, as `Tokenizer.stream` gives it."""

    def push(self, token: int, /) -> str: ...

    def push_all(self, tokens: Iterable[int], /) -> str: ...

    def flush(self) -> str: ...


class StopStrings:
    """Finds which of some strings comes first in a text, a character at a time (Aho and Corasick
    1975): the work for a character does not depend on how many there are, nor on their length.

    Raises TypeError for what is no list of strings, ValueError for an empty one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not isinstance(stops, Iterable) or isinstance(stops, str | bytes):
            raise TypeError(f"stop {stops!r}: expected a string or a list of strings")
        stops = [*stops]
        if not all(isinstance(s, str) for s in stops):
            raise TypeError(f"stop {stops!r}: expected a string or a list of strings")
        if "" in stops:
            raise ValueError("stop: a string to stop at is empty")
        # By node: its children, the node of its longest proper suffix, its depth, and the longest
        # string that ends there.
        self._next: list[dict[str, int]] = [{}]
        self._fail, self._depth = [0], [0]
        self._ends: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._link()

    def _insert(self, stop: str) -> None:
        node = 0
        for char in stop:
            if char not in self._next[node]:
                self._next[node][char] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self._depth.append(self._depth[node] + 1)
                self._ends.append(None)
            node = self._next[node][char]
        self._ends[node] = stop

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for char, child in self._next[node].items():
                self._fail[child] = self.step(self._fail[node], char)
                queue.append(child)
            self._ends[node] = self._ends[node] or self._ends[self._fail[node]]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to find."""
        return not self._next[0]

    def step(self, node: int, char: str) -> int:
        """The node after a character; 0 is where a text begins."""
        while node and char not in self._next[node]:
            node = self._fail[node]
        return self._next[node].get(char, 0)

    def found(self, node: int) -> str | None:
        """The string that ends at a node, the longest of several."""
        return self._ends[node]

    def n_held(self, node: int) -> int:
        """Characters before a node that may be the beginning of a string."""
        return self._depth[node]


class StoppingText:
    """Token ids to pieces of text, up to the first stop string, which is not part of it.

    Text that may be the beginning of one is held back until it is clear. Where several strings end
    at the same character, the longest counts.
    """

    def __init__(self, decoder: Decoder, stops: Sequence[str] | StopStrings = ()) -> None:
        self._decoder = decoder
        self._stops = stops if isinstance(stops, StopStrings) else StopStrings(stops)
        self._node = 0
        self._held = ""
        self.found: str | None = None

    def push(self, token: int) -> str:
        """Text that a token completes; "" once a stop string was found."""
        return self._take(self._decoder.push(token)) if self.found is None else ""

    def push_all(self, tokens: Iterable[int]) -> str | None:
        """Text that some tokens complete, where there is nothing to stop at; None where there is,
        and each token has to be looked at."""
        return self._decoder.push_all(tokens) if self._stops.is_empty else None

    def flush(self) -> str:
        """What was held back, at the end of the tokens."""
        if self.found is not None:
            return ""
        text = self._take(self._decoder.flush())
        held, self._held, self._node = self._held, "", 0
        return text if self.found is not None else text + held

    def _take(self, new: str) -> str:
        stops, node = self._stops, self._node
        if stops.is_empty:
            return new
        for i, char in enumerate(new):
            node = stops.step(node, char)
            self.found = stops.found(node)
            if self.found is not None:
                text = self._held + new[: i + 1]
                self._held, self._node = "", 0
                return text[: -len(self.found)]
        self._node = node
        text = self._held + new
        cut = len(text) - stops.n_held(node)
        self._held = text[cut:]
        return text[:cut]
