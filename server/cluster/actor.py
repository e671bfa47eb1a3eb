"""An object in another process, as whoever calls it sees it, and where such objects are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class ActorLostError(Exception):
    """The process is gone, or does not say anything any more."""


class Actor(Protocol):
    """An object in another process. Its methods are called by name."""

    async def call(self, name: str, *args: Any) -> Any:
        """What the method returns. Raises what it raises, and ActorLostError."""

    def tell(self, name: str, *args: Any) -> None:
        """A call whose end nobody waits for; nothing where the process is gone."""


class Hosts(Protocol):
    """Where replicas run, `n_stages` processes each."""

    n_stages: int

    async def open(self) -> None:
        """Take the room for all of them. Raises ClusterError where there is none."""

    def make(self, i: int) -> tuple[Actor, Sequence[Actor]]:
        """The processes of replica i: that of the replica, and of its other stages. They begin with
        `start`."""

    def end(self, i: int) -> None:
        """End them, if they are there."""

    async def close(self) -> None:
        """Give the room back."""
