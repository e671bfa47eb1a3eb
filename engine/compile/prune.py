"""Dead-code elimination: keep what leads to an output or changes a state."""

from __future__ import annotations

from collections.abc import Sequence

from gguflow.engine.graph import Role, Tensor, exchanged
from gguflow.engine.graph.opspec import written_owners


def prune(nodes: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
    """The nodes that some output, or some write into a state, depends on; order is kept.

    Nodes that exchange the same parts are kept together: each waits for the others.
    """
    together: dict[tuple[Tensor, ...], list[Tensor]] = {}
    for n in nodes:
        if parts := exchanged(n):
            together.setdefault(parts, []).append(n)
    wanted = [*outputs]
    wanted += [n for n in nodes if any(t.role is Role.STATE for t in written_owners(n))]
    seen: set[Tensor] = set()
    while wanted:
        t = wanted.pop()
        if t not in seen:
            seen.add(t)
            wanted.extend(t.live_srcs())
            wanted.extend(together.get(exchanged(t), ()))
    return [n for n in nodes if n in seen]
