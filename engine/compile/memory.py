"""Memory planning: one arena a memory space, every intermediate value at a fixed offset.

Two values may share bytes when their lifetimes do not overlap. Lifetimes are intervals of positions
in the execution order; a view keeps the memory it looks into alive. An op that may work in place
takes over its operand's memory when nobody else needs the operand afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.graph import Role, Tensor, op_spec

ALIGN = 64  # a cache line, and the width of the widest vector
SHARED_OUTPUT_BYTES = 16 << 10  # up to this an output comes back with every run
STRETCH = 64  # nodes whose live values are looked through together


@dataclass
class ArenaPlan:
    """Offsets of the intermediates of one memory space."""

    offsets: dict[Tensor, int] = field(default_factory=dict)
    nbytes: int = 0  # size of the arena
    naive_nbytes: int = 0  # what it would take without any reuse


def round_up(n: int, to: int = ALIGN) -> int:
    """The least multiple of `to` that is not below `n`."""
    return -(-n // to) * to


@dataclass
class _Life:
    tensor: Tensor
    nbytes: int
    start: int
    end: int

    @property
    def stretches(self) -> range:
        """Stretches of the execution order that it is alive in."""
        return range(self.start // STRETCH, self.end // STRETCH + 1)


def plan_memory(
    nodes: Sequence[Tensor],
    outputs: Sequence[Tensor],
    until: Mapping[Tensor, int] | None = None,
    since: Mapping[Tensor, int] | None = None,
) -> ArenaPlan:
    """Place the results of `nodes` (execution order) that own memory; `outputs` live to the end.

    until: values that somebody else reads after so many of the nodes have run. since: values that
    somebody else may write from the moment on when so many of the nodes have run.
    """
    lives = _lifetimes(nodes, outputs)
    for t, n in (until or {}).items():
        lives[t].end = max(lives[t].end, n)
    for t, n in (since or {}).items():
        lives[t].start = min(lives[t].start, n)
    takes_over = _in_place(nodes, lives)
    plan = ArenaPlan(naive_nbytes=sum(round_up(x.nbytes) for x in lives.values()))

    # A value computed in place extends the life of the memory it takes over.
    root: dict[Tensor, Tensor] = {}
    for t, operand in takes_over.items():
        root[t] = root.get(operand, operand)
        base = lives[root[t]]
        base.end = max(base.end, lives[t].end)
    blocks = [x for t, x in lives.items() if t not in root]

    # Largest first, each at the lowest offset free for its whole life: within a few percent of
    # optimal for graphs of this shape, and simple. Looking only at values that live nearby keeps
    # the time linear in the number of layers.
    placed: defaultdict[int, list[tuple[int, _Life]]] = defaultdict(list)
    for life in sorted(blocks, key=lambda x: (-x.nbytes, x.start)):
        busy = sorted(
            (off, off + round_up(o.nbytes))
            for i in life.stretches
            for off, o in placed[i]
            if o.start <= life.end and life.start <= o.end
        )
        offset = 0
        for lo, hi in busy:
            if offset + round_up(life.nbytes) <= lo:
                break
            offset = max(offset, hi)
        for i in life.stretches:
            placed[i].append((offset, life))
        plan.offsets[life.tensor] = offset
        plan.nbytes = max(plan.nbytes, offset + round_up(life.nbytes))
    for t, base_tensor in root.items():
        plan.offsets[t] = plan.offsets[base_tensor]
    return plan


def _lifetimes(nodes: Sequence[Tensor], outputs: Sequence[Tensor]) -> dict[Tensor, _Life]:
    lives = {
        node: _Life(node, node.nbytes, i, i)
        for i, node in enumerate(nodes)
        if node.view_of is None and node.role is Role.NODE
    }
    for i, node in enumerate(nodes):
        if node.owner in lives:  # made within another, maybe before that is complete
            lives[node.owner].start = min(lives[node.owner].start, i)
        for s in node.live_srcs():
            if s.owner in lives:
                lives[s.owner].end = max(lives[s.owner].end, i)
    for t in outputs:
        if t.owner in lives:
            lives[t.owner].end = len(nodes)
    return lives


def _in_place(nodes: Sequence[Tensor], lives: dict[Tensor, _Life]) -> dict[Tensor, Tensor]:
    """Node -> operand whose memory it takes over."""
    taken: dict[Tensor, Tensor] = {}
    for i, node in enumerate(nodes):
        if node not in lives or node.op is None:
            continue
        for index in op_spec(node.op).in_place:
            s = node.srcs[index] if index < len(node.srcs) else None
            if (
                s is not None
                and s in lives  # owns its memory: not a leaf, not a view
                and lives[s].end == i
                and s.is_contiguous
                and (s.shape, s.dtype) == (node.shape, node.dtype)
                and sum(x is not None and x.owner is s for x in node.srcs) == 1
            ):
                taken[node] = s
                break
    return taken
