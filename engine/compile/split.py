"""Splitting: cut the nodes into segments of one backend, with explicit copies between spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.graph import Tensor, exchanged, written_owners

from .place import Placement


@dataclass(frozen=True)
class Copy:
    """Bring the memory of `owner` from one space to another before a segment starts."""

    owner: Tensor
    source: str
    target: str


@dataclass
class Segment:
    """A run of nodes on one backend, and what must be copied in first."""

    backend: str
    nodes: list[Tensor] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)


def split(
    nodes: Sequence[Tensor], placement: Placement, spaces: Mapping[str, str]
) -> list[Segment]:
    """Segments in execution order.

    spaces: memory space by backend name. A value is copied once into each space that reads it, in
    the first segment that needs it; what an op exchanges by itself is not copied.
    """
    segments: list[Segment] = []
    present: dict[Tensor, set[str]] = {}  # spaces that have a copy
    for node in nodes:
        backend = placement.of[node]
        if not segments or segments[-1].backend != backend:
            segments.append(Segment(backend))
        segment = segments[-1]
        space = spaces[backend]
        brought = exchanged(node)
        for src in (s for s in node.live_srcs() if s not in brought):
            owner = src.owner
            home = spaces[placement.of[owner]]
            if home != space and space not in present.setdefault(owner, set()):
                segment.copies.append(Copy(owner, home, space))
                present[owner].add(space)
        segment.nodes.append(node)
        # A new value in its own space makes older copies of the memory it lives in stale.
        for owner in (node.owner, *written_owners(node)):
            present.pop(owner, None)
    return segments
