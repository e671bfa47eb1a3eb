"""Rows of the residual stream shared out among the devices, for prompts.

Where all devices add all parts of a sum, each adds it to the residual and has its norm computed as
the others do. With many rows each device does so for its share of them alone: parts of these come
to it, and what the next products want, the norms, goes to the others; what is added up stays where
it is until the next sum. The last sum of a stretch is sent as it is to all. The numbers and their
order are the same either way. (Korthikanti et al. 2022, arXiv 2205.05198.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gguflow.engine.compile import recorded_before, replace_values
from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import Graph, Role, Tensor, exchanged

from .cuts import part_name

# Rows, their elements, and whether all that reads their norms has 16-bit weights.
Takes = Callable[[int, int, bool], bool]


@dataclass(frozen=True)
class _Sum:
    """A sum that every device adds to the residual: by device.

    added: the residual after it. residual: before it. norms: what follows, where nothing but the
    next sum reads `added` beside it: the weights and the normed values.
    """

    added: tuple[Tensor, ...]
    residual: tuple[Tensor, ...]
    parts: tuple[Tensor, ...]
    norms: tuple[tuple[Tensor, Tensor, float], ...] | None  # weights, values, eps
    beside: tuple[tuple[Tensor, ...], ...]  # other readers of `added`


def share_rows(g: Graph, n: int, takes: Takes) -> None:
    """Rewrite the recorded graph of n devices where sums of such sizes follow each other."""
    sums = _sums(g, n, takes)
    by_residual = {s.residual: s for s in sums}
    begun: set[tuple[Tensor, ...]] = set()
    swap: dict[Tensor, Tensor] = {}
    for first in sums:
        if first.added in begun:
            continue
        stretch = [first]
        while (following := _next(stretch[-1], by_residual)) is not None:
            stretch.append(following)
        begun |= {s.added for s in stretch}
        if len(stretch) > 1:
            swap |= _record(g, n, stretch)
    replace_values(g, swap)


def _next(s: _Sum, by_residual: dict[tuple[Tensor, ...], _Sum]) -> _Sum | None:
    """The sum that alone reads what this one added, beside a norm."""
    following = by_residual.get(s.added)
    if s.norms is None or following is None:
        return None
    only = all(b == (a,) for b, a in zip(s.beside, following.added, strict=True))
    return following if only else None


def _record(g: Graph, n: int, stretch: Sequence[_Sum]) -> dict[Tensor, Tensor]:
    """Record it anew; what takes the place of which values."""
    m, _ = stretch[0].added[0].shape
    bounds = [m * k // n for k in range(n + 1)]
    swap: dict[Tensor, Tensor] = {}
    own: list[Tensor] = []
    for i, s in enumerate(stretch):
        names = [f"{t.name.removesuffix(part_name('', k))}.rows" for k, t in enumerate(s.added)]
        with recorded_before(g, s.added[0]):
            if i == 0:
                for k, t in enumerate(s.residual):
                    rows = g.slice(t, 0, bounds[k], bounds[k + 1])
                    own.append(g.cont(rows, name=part_name(f"{names[k]}.first", k)))
            brought = [t for pair in zip(own, s.parts, strict=True) for t in pair]
            last = i == len(stretch) - 1
            made = []
            for k in range(n):
                w, _, eps = (None, None, 0.0) if last or s.norms is None else s.norms[k]
                name = part_name(names[k], k)
                made.append(g.op("all_reduce_norm", w, *brought, rank=k, eps=eps, name=name))
            if last or s.norms is None:
                swap |= dict(zip(s.added, made, strict=True))
                break
            own = [g.slice(t, 0, m, t.shape[0]) for t in made]
            swap |= {h: g.slice(t, 0, 0, m) for (_, h, _), t in zip(s.norms, made, strict=True)}
    return swap


# -- what there is ---------------------------------------------------------------------------------


def _sums(g: Graph, n: int, takes: Takes) -> list[_Sum]:
    readers = _Readers(g)
    groups: dict[tuple[Tensor, ...], list[Tensor]] = {}
    for node in g.nodes:
        if node.op == "all_reduce":
            groups.setdefault(exchanged(node), []).append(node)
    at = {node: i for i, node in enumerate(g.nodes)}
    found = []
    for parts, totals in groups.items():
        s = _sum(totals, parts, readers, takes) if len(totals) == n else None
        # Its norms, and what reads them, come after all of it.
        if s is not None and at[s.added[-1]] - at[s.added[0]] == n - 1:
            found.append(s)
    return found


def _sum(
    totals: Sequence[Tensor], parts: tuple[Tensor, ...], readers: _Readers, takes: Takes
) -> _Sum | None:
    added, residual, norms, beside = [], [], [], []
    for total in totals:
        (a, *more) = readers.of(total) or (total,)
        if more or a.op != "add" or a.shape != total.shape or len(a.shape) != 2:
            return None
        others = [t for t in a.live_srcs() if t is not total]
        norm = _norm(readers.of(a), readers)
        floats = norm is not None and all(map(_is_float_product, readers.of(norm[1][1])))
        if len(others) != 1 or others[0].shape != a.shape or not takes(*a.shape, floats):
            return None
        added.append(a)
        residual.append(others[0])
        beside.append(tuple(t for t in readers.of(a) if norm is None or t is not norm[0]))
        norms.append(None if norm is None else norm[1])
    every = tuple(x for x in norms if x is not None)
    return _Sum(
        tuple(added), tuple(residual), parts, every if len(every) == len(norms) else None,
        tuple(beside),
    )  # fmt: skip


def _is_float_product(node: Tensor) -> bool:
    """Whether a node is a product with 16-bit weights."""
    w = node.srcs[0] if node.op == "mul_mat" else None
    return w is not None and w.dtype.name in ("f16", "bf16")


def _norm(
    nodes: Sequence[Tensor], readers: _Readers
) -> tuple[Tensor, tuple[Tensor, Tensor, float]] | None:
    """The one rms_norm among these, and what it is multiplied by and gives."""
    found = [t for t in nodes if t.op == "rms_norm"]
    if len(found) != 1:
        return None
    (norm,) = found
    (times, *more) = readers.of(norm) or (norm,)
    if more or times.op != "mul" or times.srcs[0] is not norm or times in readers.shown:
        return None
    w = times.srcs[1]
    if w is None or w.role is not Role.WEIGHT or w.shape != norm.shape[-1:]:
        return None
    return norm, (w, times, norm.params["eps"])


class _Readers:
    """Which nodes read a value; through a view, or as an output, somebody else does. shown: values
    that are outputs, or that outputs are views of: a device may hold norms in another form."""

    def __init__(self, g: Graph) -> None:
        self._of: dict[Tensor, list[Tensor]] = {}
        self.shown: set[Tensor] = set()
        for node in g.nodes:
            for s in node.live_srcs():
                self._see(s, node)
        for t in g.outputs:
            self._see(t, t)
            self.shown.add(t)
            while t.role is Role.VIEW:
                (t,) = t.live_srcs()
                self.shown.add(t)

    def of(self, t: Tensor) -> list[Tensor]:
        return self._of.get(t, [])

    def _see(self, t: Tensor, reader: Tensor) -> None:
        self._of.setdefault(t, []).append(reader)
        while t.role is Role.VIEW:
            (s,) = t.live_srcs()
            self._of.setdefault(s, []).append(t)
            t = s
