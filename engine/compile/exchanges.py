"""What devices exchange: the sizes that their channels are made for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gguflow.engine.graph import Tensor, exchanged, exchanged_by_rank


class Exchanged(NamedTuple):
    """parts: bytes of the parts of every sum that all devices add. shares: of every sum whose rows
    they share out, the rows of the largest share and the bytes of a row."""

    parts: tuple[int, ...] = ()
    shares: tuple[tuple[int, int], ...] = ()

    def beside(self, other: Exchanged) -> Exchanged:
        """Both, each size once."""
        return Exchanged(
            tuple(sorted({*self.parts, *other.parts})), tuple(sorted({*self.shares, *other.shares}))
        )


def exchange_sizes(nodes: Iterable[Tensor]) -> Exchanged:
    """Of nodes of one device; others are left out."""
    parts: list[int] = []
    shares: list[tuple[int, int]] = []
    for n in nodes:
        for made in exchanged_by_rank(n)[:1]:
            if len(made) == 1:
                parts.append(made[0].nbytes)
            else:
                rows = max(r.shape[0] for r, _ in exchanged_by_rank(n))
                shares.append((rows, made[0].nbytes // made[0].shape[0]))
    return Exchanged(tuple(parts), tuple(shares))


def n_ranks(node: Tensor) -> int:
    """How many devices exchange what a node does; none for most."""
    return len(exchanged_by_rank(node)) if exchanged(node) else 0
