"""Dead-code elimination: keep what leads to an output or changes a state."""

from __future__ import annotations

from collections.abc import Sequence

from gguflow.engine.graph import Role, Tensor, op_spec
from gguflow.engine.graph.opspec import written_owners


def prune(nodes: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
    """The nodes that some output, or some write into a state, depends on; order is kept.

    Nodes that exchange their operands are kept together: each waits for the others.
    """
    together: dict[tuple[Tensor | None, ...], list[Tensor]] = {}
    for n in nodes:
        if n.op is not None and op_spec(n.op).exchanges:
            together.setdefault(n.srcs, []).append(n)
    wanted = [*outputs]
    wanted += [n for n in nodes if any(t.role is Role.STATE for t in written_owners(n))]
    seen: set[Tensor] = set()
    while wanted:
        t = wanted.pop()
        if t not in seen:
            seen.add(t)
            wanted.extend(t.live_srcs())
            wanted.extend(together.get(t.srcs, ()) if t.op is not None else ())
    return [n for n in nodes if n in seen]
