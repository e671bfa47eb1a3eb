"""What comes of a replica reaches its readers: at once, or several tokens at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gguflow.engine.serving import aio
from gguflow.engine.serving.aio import Mailbox
from gguflow.engine.serving.request import Request, Token
from gguflow.server.cluster.actor import ActorLostError
from gguflow.server.cluster.link import Link, ReplicaLostError
from gguflow.server.cluster.replica import Parcel
from gguflow.server.cluster.travel import part, row

N, N_TOKENS = 20, 12


class Replica:
    """Makes a token for each of its requests with every call, then it is gone."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.n_made = 0

    def tell(self, name: str, key: int, *_: Any) -> None:
        if name == "submit":
            self.keys.append(key)

    async def call(self, name: str) -> Parcel:
        await asyncio.sleep(0)
        n, self.n_made = self.n_made, self.n_made + 1
        if n == N_TOKENS:
            raise ActorLostError("gone")
        finish = "length" if n == N_TOKENS - 1 else None
        return Parcel([row(key, Token(0, 7, n, finish)) for key in self.keys])


@pytest.mark.parametrize("held", [True, False])
def test_tokens_are_told_together(monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    monkeypatch.setattr(aio, "HOLD_FROM", N if held else N + 1)
    monkeypatch.setattr(aio, "HOLD_EACH", 1.0)
    monkeypatch.setattr(aio, "HOLD_MOST", 60.0)
    link = Link(Replica(), 10.0, lambda *_: None)  # type: ignore[arg-type]

    async def read(box: Mailbox) -> list[int]:
        sizes = list[int]()
        while sum(sizes) < N_TOKENS:
            sizes.append(len(await box.take()))
        return sizes

    async def main() -> list[list[int]]:
        boxes = [link.open(part(Request([1, 2])))[1] for _ in range(N)]
        reading = [asyncio.create_task(read(box)) for box in boxes]
        with pytest.raises(ReplicaLostError, match="gone"):
            await link.run()
        return await asyncio.gather(*reading)

    sizes = asyncio.run(main())
    # The first and the last at once; the second too, since nobody was told for long.
    assert sizes == [[1, 1, N_TOKENS - 2] if held else [1] * N_TOKENS] * N
