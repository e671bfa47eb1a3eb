"""The graph of a model over several devices, recorded from the one for a single device.

Every node is recorded once a device, of its parts. Parts of a sum are exchanged and added by every
device in the same order, so that all have the same bits; so are joined the parts of an axis that an
op needs whole. What no device reads in the end is pruned by compiling. (Shoeybi et al. 2019, arXiv
1909.08053.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import F32, Graph, Role, Tensor

from .axes import RULES, Labels, permutation, view_kind, view_labels
from .cuts import Bounds, Cut, Cuts, part_name
from .rows import Takes, share_rows

# Linear in their first operand: what they make of parts of a sum are parts of a sum.
_LINEAR = ("moe_sum", "cont")


@dataclass(frozen=True)
class TensorSplit:
    """A rewrite of a model's graphs. Weights and states are called `<name>@<device>`.

    reduces: whether the devices have an all_reduce, instead of values that cross and are added.
    shares: of sums of how many rows of how many elements they do so each for its share of the rows.
    """

    cuts: Cuts
    reduces: bool = False
    shares: Takes | None = None

    def rewrite(self, g: Graph) -> None:
        _Recorder(g, self.cuts, self.reduces).record()
        if self.reduces and self.shares is not None:
            share_rows(g, self.cuts.n, self.shares)


@dataclass(frozen=True)
class _Value:
    """A tensor on all devices.

    parts: by device; the same one where only one device has it. cut: of which axis they are parts;
    None where they are the same, or summands.
    """

    parts: tuple[Tensor, ...]
    cut: Cut | None = None
    is_sum: bool = False


class _Recorder:
    def __init__(self, g: Graph, cuts: Cuts, reduces: bool) -> None:
        self._g, self._cuts, self._reduces = g, cuts, reduces
        self._of: dict[Tensor, _Value] = {}
        self._joined: dict[Tensor, _Value] = {}

    def record(self) -> None:
        g = self._g
        nodes, outputs, g.nodes = g.nodes, g.outputs, []
        for node in nodes:
            self._of[node] = self._node(node)
        g.outputs = [self._whole(t).parts[0] for t in outputs]
        used = {s.owner for n in g.nodes for s in n.live_srcs()}
        g.leaves = {
            name: t for name, t in g.leaves.items() if t.role is not Role.STATE or t in used
        }

    # -- leaves and views ------------------------------------------------------------------------

    def _value(self, t: Tensor) -> _Value:
        if t not in self._of:
            self._of[t] = self._view(t) if t.role is Role.VIEW else self._leaf(t)
        return self._of[t]

    def _leaf(self, t: Tensor) -> _Value:
        g, n = self._g, self._cuts.n
        if t.role is Role.STATE:  # as wide as what is written into it, see `_set_rows`
            return self._state(t, None)
        cut = self._cuts.weights.get(t.name)
        if t.role is not Role.WEIGHT or cut is None:
            return _Value((t,) * n)
        parts = tuple(g.leaves[part_name(t.name, k)] for k in range(n))
        return _Value(parts, cut)

    def _state(self, t: Tensor, cut: Cut | None) -> _Value:
        shapes = [t.shape if cut is None else cut.shape(t.shape, k) for k in range(self._cuts.n)]
        named = (
            self._g.state(part_name(t.name, k), t.dtype, shape) for k, shape in enumerate(shapes)
        )
        value = self._of[t] = _Value(tuple(named), cut)
        return value

    def _view(self, t: Tensor) -> _Value:
        (s,) = t.live_srcs()
        value = self._value(s)
        of_s, of_t = view_labels(s, t)
        if value.cut is not None and value.cut.axis not in of_s:
            value = self._whole(s)
        if value.cut is None:
            parts = {p: self._viewed(s, t, p, t.shape) for p in value.parts}
            return _Value(tuple(parts[p] for p in value.parts), None, value.is_sum)
        axis = of_t[of_s.index(value.cut.axis)]
        cut = Cut(axis, _scaled(value.cut.bounds, t.shape[axis]))
        made = (
            self._viewed(s, t, p, cut.shape(t.shape, k)) for k, p in enumerate(value.parts)
        )  # fmt: skip
        return _Value(tuple(made), cut)

    def _viewed(self, s: Tensor, t: Tensor, part: Tensor, shape: Sequence[int]) -> Tensor:
        """The view t of s, of a part of s."""
        g, kind = self._g, view_kind(s, t)
        if kind == "permute":
            return g.permute(part, tuple(permutation(s, t)))
        if kind == "reshape":
            return g.reshape(part, tuple(shape))
        offset = t.view_offset - s.view_offset
        for a, (n, stride) in enumerate(zip(s.shape, s.strides, strict=True)):
            if t.shape[a] != n:
                step = t.strides[a] // stride
                block = s.dtype.block if a == len(s.shape) - 1 else 1
                start = offset // stride % max(1, n // block) * block
                part = g.slice(part, a, start, start + (t.shape[a] - 1) * step + 1, step)
        return part

    # -- nodes -----------------------------------------------------------------------------------

    def _node(self, node: Tensor) -> _Value:
        if node.op == "set_rows":
            return self._set_rows(node)
        table = node.srcs[0]
        if node.op == "get_rows" and table is not None and table.role is Role.WEIGHT:
            ids = [self._whole(s) for s in node.srcs[1:] if s is not None]
            looked_up = self._one(node, [_Value((table,)), *ids], 0)
            return _Value((looked_up,) * self._cuts.n)
        sums = [s is not None and self._value(s).is_sum for s in node.srcs]
        if any(sums) and (all(sums) and node.op == "add" or _is_linear(node, sums)):
            made = self._each(node, [None if s is None else self._value(s) for s in node.srcs])
            return _Value(made, None, is_sum=True)
        values = [None if s is None else self._added(s) for s in node.srcs]
        rule = RULES.get(node.op or "")
        labels = rule(node) if rule is not None else None
        letter, bounds = _cut_letter(labels, values)
        if labels is None or letter == ".":
            whole = [None if s is None else self._whole(s) for s in node.srcs]
            return _Value(self._each(node, whole))
        if letter is None:
            return _Value(self._each(node, values))
        for i, (s, v) in enumerate(zip(node.srcs, values, strict=True)):
            if s is not None and v is not None and v.cut is None and letter in labels[i]:
                values[i] = self._narrowed(s, v, labels[i].index(letter), bounds)
        if letter not in labels[-1]:  # summed over
            if len(values) > 3:  # experts' biases are to be added once
                return _Value(self._each_once(node, values, 3), is_sum=True)
            return _Value(self._each(node, values), is_sum=True)
        made = self._each(node, values)
        axis = labels[-1].index(letter)
        value = _Value(made, Cut(axis, _scaled(bounds, node.shape[axis])))
        weight = values[0]
        if weight is not None and weight.cut is not None and weight.cut.joined:
            self._of[node] = value
            return self._whole(node)
        return value

    def _each(self, node: Tensor, values: Sequence[_Value | None]) -> tuple[Tensor, ...]:
        return tuple(self._one(node, values, k) for k in range(self._cuts.n))

    def _each_once(
        self, node: Tensor, values: Sequence[_Value | None], once: int
    ) -> tuple[Tensor, ...]:
        """`_each` with operands from `once` on for the first device alone."""
        return (self._one(node, values, 0),
                *(self._one(node, values[:once], k) for k in range(1, self._cuts.n)))  # fmt: skip

    def _one(self, node: Tensor, values: Sequence[_Value | None], k: int) -> Tensor:
        srcs = (None if v is None else v.parts[k] for v in values)
        params: dict[str, Any] = dict(node.params)
        return self._g.op(node.op or "", *srcs, name=part_name(node.name, k), **params)

    def _set_rows(self, node: Tensor) -> _Value:
        state, x, rows = node.live_srcs()
        value = self._added(x)
        cut = value.cut if value.cut is not None and value.cut.axis == 1 else None
        if cut is None:
            value = self._whole(x)
        if state not in self._of and state.role is Role.STATE:
            self._state(state, cut)
        if self._value(state).cut != cut:
            raise ValueError(f"{node.name}: {state.name} is written in other parts before")
        return _Value(self._each(node, [self._value(state), value, self._value(rows)]), cut)

    def _narrowed(self, s: Tensor, value: _Value, axis: int, bounds: Bounds) -> _Value:
        """Each device's part of what all have."""
        cut = Cut(axis, _scaled(bounds, s.shape[axis]))
        parts = (
            self._g.slice(p, axis, cut.bounds[k], cut.bounds[k + 1])
            for k, p in enumerate(value.parts)
        )
        if axis == len(s.shape) - 1 and len(s.shape) > 1:
            parts = (self._g.cont(p, name=f"{part_name(s.name, k)}.mine")
                     for k, p in enumerate(parts))  # fmt: skip
        return _Value(tuple(parts), cut)

    # -- exchanges -------------------------------------------------------------------------------

    def _added(self, t: Tensor) -> _Value:
        """A value that is no sum in parts."""
        value = self._value(t)
        if not value.is_sum:
            return value
        if t not in self._joined:
            if self._reduces and all(_is_dense(p) for p in value.parts):
                self._joined[t] = self._reduced(t, value)
            else:
                self._joined[t] = self._exchanged(t, value, "sum", self._g.add)
        return self._joined[t]

    def _reduced(self, t: Tensor, value: _Value) -> _Value:
        names = (part_name(f"{t.name}.sum", k) for k in range(self._cuts.n))
        return _Value(tuple(self._g.op("all_reduce", *value.parts, name=name) for name in names))

    def _whole(self, t: Tensor) -> _Value:
        """A value of which every device has all."""
        value = self._added(t)
        if value.cut is None:
            return value
        if t not in self._joined:
            axis = value.cut.axis - len(t.shape)
            join = partial(self._g.concat, axis=axis)
            self._joined[t] = self._exchanged(t, value, "joined", join)
        return self._joined[t]

    def _exchanged(self, t: Tensor, value: _Value, what: str, op: Any) -> _Value:
        made = []
        for k in range(self._cuts.n):
            name = part_name(f"{t.name}.{what}", k)
            made.append(reduce(partial(op, name=name), value.parts))
        return _Value(tuple(made))


def _is_dense(part: Tensor) -> bool:
    """Whether an all_reduce takes it: memory of its own, without gaps."""
    return part.dtype is F32 and part.owner is part and part.is_contiguous


def _is_linear(node: Tensor, sums: Sequence[bool]) -> bool:
    """Whether a node may be computed of parts of a sum, its first operand."""
    if not sums[0] or any(sums[1:]):
        return False
    return node.op in _LINEAR or (node.op == "scale" and not node.params["b"])


def _cut_letter(
    labels: Labels | None, values: Sequence[_Value | None]
) -> tuple[str | None, Bounds]:
    """The letter of the axis that operands are cut along, "." where it has none; None where none is
    cut, or several are."""
    found: dict[str, Bounds] = {}
    for i, v in enumerate(values):
        if v is not None and v.cut is not None:
            letter = "." if labels is None else labels[i][v.cut.axis]
            found.setdefault(letter, v.cut.bounds)
    if not found:
        return None, ()
    if len(found) > 1 or "." in found:
        return ".", ()
    return next(iter(found.items()))


def _scaled(bounds: Bounds, size: int) -> Bounds:
    """The same cut of an axis of another length."""
    return tuple(b * size // bounds[-1] for b in bounds)
