"""Changing a recorded graph: new nodes in the middle, values in place of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gguflow.engine.graph import Graph, Role, Tensor
from gguflow.engine.graph.opspec import written_owners


@contextmanager
def recorded_before(g: Graph, node: Tensor) -> Iterator[None]:
    """What is recorded inside runs right before `node`."""
    at = g.nodes.index(node)
    after = g.nodes[at:]
    del g.nodes[at:]
    try:
        yield
    finally:
        g.nodes += after


def replace_values(g: Graph, swap: Mapping[Tensor, Tensor]) -> None:
    """Let readers of each key, outputs and views included, read its value; what nobody needs any
    more is gone. Shapes must agree."""
    for old, new in swap.items():
        if (old.dtype, old.shape) != (new.dtype, new.shape):
            raise ValueError(
                f"{new.name} {new.dtype.name}{list(new.shape)} in place of {old.name} "
                f"{old.dtype.name}{list(old.shape)}"
            )

    def current(t: Tensor | None) -> Tensor | None:
        if t is None:
            return None
        if t in swap:
            return swap[t]
        if t.role is Role.VIEW:
            t.srcs = tuple(current(s) for s in t.srcs)
            if t.view_of is not None:
                t.view_of = swap.get(t.view_of, t.view_of)
        return t

    for node in g.nodes:
        node.srcs = tuple(current(s) for s in node.srcs)
    g.outputs = [current(t) or t for t in g.outputs]
    _drop(g, swap)


def _drop(g: Graph, unread: Mapping[Tensor, Tensor]) -> None:
    """Forget nodes, and those that were computed for them alone."""
    readers = Counter(s for n in g.nodes for t in n.live_srcs() for s in _through_views(t))
    readers.update(s for t in g.outputs for s in _through_views(t))
    gone: set[Tensor] = set()
    left = [*unread]
    while left:
        node = left.pop()
        if node.role is not Role.NODE or readers[node] or written_owners(node) or node in gone:
            continue
        gone.add(node)
        for t in node.live_srcs():
            made = list(_through_views(t))
            readers.subtract(made)
            left += made
    g.nodes = [n for n in g.nodes if n not in gone]


def _through_views(t: Tensor) -> Iterator[Tensor]:
    """A tensor and, of a view, all that it is a view of."""
    yield t
    while t.role is Role.VIEW:
        (t,) = t.live_srcs()
        yield t
