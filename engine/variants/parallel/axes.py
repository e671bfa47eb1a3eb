"""Which axes of a graph's tensors have to be cut alike, and into how many pieces they can be.

Rows of a weight are columns of its product; these are heads once they are reshaped, heads of keys
belong to heads of queries, and what attention gives meets columns of the next weight. All of them
are one class: a piece of one goes with a piece of each other, in proportion. Pieces are as small as
whole heads and whole blocks of quantized columns allow. An op without a rule here can only have all
of its operands (Xu et al. 2021, arXiv 2105.04663, propagate annotations in the same way).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd

from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import Graph, Role, Tensor

Axis = tuple[Tensor, int]  # a tensor and one of its dimensions
Labels = Sequence[str]  # a letter an axis, for every source and then the result; "." stays whole


@dataclass
class AxisClass:
    """Axes that are cut alike.

    pieces: the most that all can be cut into. whole: some op needs all of one. n_rows, n_columns:
    elements of weights whose rows, and whose columns, are in it.
    """

    pieces: int = 0
    whole: bool = False
    n_rows: int = 0
    n_columns: int = 0

    def join(self, other: AxisClass) -> None:
        self.pieces = gcd(self.pieces, other.pieces)
        self.whole |= other.whole
        self.n_rows += other.n_rows
        self.n_columns += other.n_columns


class Axes:
    """The classes of all axes of a graph."""

    def __init__(self, g: Graph) -> None:
        self._parent: dict[Axis, Axis] = {}
        self._classes: dict[Axis, AxisClass] = {}
        self._views: set[Tensor] = set()
        for node in g.nodes:
            for s in node.live_srcs():
                self._see(s)
            self._node(node)
        for t in g.outputs:
            self._see(t)
            self._whole(t)
        self._one_side(g)

    def of(self, t: Tensor, axis: int) -> AxisClass:
        """The class of an axis, counted from either end."""
        return self._classes[self._find((t, axis % len(t.shape)))]

    # -- classes ---------------------------------------------------------------------------------

    def _find(self, axis: Axis) -> Axis:
        if axis not in self._parent:
            self._parent[axis] = axis
            self._classes[axis] = AxisClass(axis[0].shape[axis[1]])
        root = axis
        while self._parent[root] != root:
            root = self._parent[root]
        self._parent[axis] = root
        return root

    def _unite(self, a: Axis, b: Axis) -> None:
        one, other = self._find(a), self._find(b)
        if one != other:
            self._parent[other] = one
            self._classes[one].join(self._classes.pop(other))

    def _whole(self, t: Tensor, axes: Sequence[int] | None = None) -> None:
        for a in range(len(t.shape)) if axes is None else axes:
            self.of(t, a).whole = True

    def _one_side(self, g: Graph) -> None:
        """A product is cut by rows or by columns; where both could be, by rows."""
        for node in g.nodes:
            if node.op in ("mul_mat", "mul_mat_id"):
                w = node.live_srcs()[0]
                columns = self.of(w, -1)
                if not self.of(w, -2).whole and columns is not self.of(w, -2):
                    columns.whole = True

    # -- what ops say ----------------------------------------------------------------------------

    def _node(self, node: Tensor) -> None:
        rule = RULES.get(node.op or "")
        labels = rule(node) if rule is not None else None
        if labels is None:
            for t in (*node.live_srcs(), node):
                self._whole(t)
            return
        first: dict[str, Axis] = {}
        for operand, letters in zip((*node.srcs, node), labels, strict=True):
            if operand is None:
                continue
            for a, letter in enumerate(letters):
                if letter == ".":
                    self._whole(operand, [a])
                elif letter in first:
                    self._unite(first[letter], (operand, a))
                else:
                    first[letter] = operand, a
        if node.view_of is not None:  # what is written into is where it was
            target = node.live_srcs()[0]
            for a in range(len(node.shape)):
                self._unite((node, a), (target, a))
        if node.op in ("mul_mat", "mul_mat_id"):
            w = node.live_srcs()[0]
            if w.role is Role.WEIGHT:
                self.of(w, -2).n_rows += w.size
                columns = self.of(w, -1)
                columns.n_columns += w.size
                columns.pieces = gcd(columns.pieces, w.shape[-1] // w.dtype.block)

    def _see(self, t: Tensor) -> None:
        """Relate a view to what it is a view of."""
        if t.role is not Role.VIEW or t in self._views:
            return
        self._views.add(t)
        (s,) = t.live_srcs()
        self._see(s)
        for letters in zip(*view_labels(s, t), strict=True):
            pair = list(letters)
            if None not in pair:
                self._unite((s, pair[0]), (t, pair[1]))
        known_s, known_t = view_labels(s, t)
        self._whole(s, [a for a in range(len(s.shape)) if a not in known_s])
        self._whole(t, [a for a in range(len(t.shape)) if a not in known_t])


# -- views ---------------------------------------------------------------------------------------


def view_kind(s: Tensor, t: Tensor) -> str:
    """How t is a view of s: "reshape", "permute" or "slice"."""
    if t.view_offset == s.view_offset and s.strides != t.strides:
        dims = [sorted(zip(x.shape, x.strides, strict=True)) for x in (s, t)]
        if dims[0] == dims[1]:
            return "permute"
    same = s.is_contiguous and t.is_contiguous and s.size == t.size
    return "reshape" if same else "slice"


def permutation(s: Tensor, t: Tensor) -> list[int]:
    """The axes of s in t's order."""
    left = list(range(len(s.shape)))
    found = []
    for n, stride in zip(t.shape, t.strides, strict=True):
        a = next(a for a in left if (s.shape[a], s.strides[a]) == (n, stride))
        left.remove(a)
        found.append(a)
    return found


def view_labels(s: Tensor, t: Tensor) -> tuple[list[int], list[int]]:
    """Axes of a view's source and of the view that go together, in pairs."""
    kind = view_kind(s, t)
    if kind == "permute":
        return permutation(s, t), list(range(len(t.shape)))
    if kind == "slice":
        same = [
            a for a in range(len(s.shape))
            if len(s.shape) == len(t.shape) and s.shape[a] == t.shape[a]
        ]  # fmt: skip
        return same, same
    return _merged(s.shape, t.shape)


def _merged(a: Sequence[int], b: Sequence[int]) -> tuple[list[int], list[int]]:
    """The outermost axes of groups that hold the same elements. Axes of length one, which may stand
    anywhere, are in none."""
    longer_a, longer_b = ([i for i, n in enumerate(shape) if n > 1] for shape in (a, b))
    pairs: list[tuple[int, int]] = []
    while longer_a and longer_b:
        i, j = longer_a.pop(0), longer_b.pop(0)
        pairs.append((i, j))
        n, m = a[i], b[j]
        while n != m:
            if n < m:
                n *= a[longer_a.pop(0)]
            else:
                m *= b[longer_b.pop(0)]
    return [x for x, _ in pairs], [y for _, y in pairs]


# -- rules: one a kind of op -----------------------------------------------------------------------

Rule = Callable[[Tensor], Labels | None]
_LETTERS = "abcdefgh"


def _same(node: Tensor) -> Labels | None:
    if any(s.shape != node.shape for s in node.live_srcs()):  # gate and up in one
        return None
    letters = _LETTERS[: len(node.shape)]
    return [letters for _ in (*node.srcs, node)]


def _broadcast(node: Tensor) -> Labels:
    a, b = node.live_srcs()
    letters = list(_LETTERS[: len(a.shape)])
    other = []
    for i, n in enumerate(b.shape, len(a.shape) - len(b.shape)):
        other.append(letters[i] if n == a.shape[i] else "x" if n == 1 else ".")
        if other[-1] == ".":  # read modulo its length
            letters[i] = "."
    alone = iter("stuvwxyz")  # axes of length one are related to nothing
    mine = "".join(next(alone) if c == "x" else c for c in other)
    return ["".join(letters), mine, "".join(letters)]


def _over_last(node: Tensor) -> Labels:
    """The last axis is computed with as a whole; other operands are vectors over it."""
    letters = _LETTERS[: len(node.shape) - 1] + "."
    return [letters, *("." * len(s.shape) if s else "" for s in node.srcs[1:]), letters]


def _mul_mat(node: Tensor) -> Labels | None:
    w, x = node.live_srcs()
    if len(w.shape) == 2:
        tokens = _LETTERS[: len(x.shape) - 1]
        return ["ok", tokens + "k", tokens + "o"]
    if len(w.shape) == 3 and len(x.shape) == 3 and w.shape[0] == x.shape[0]:
        return ["hok", "hmk", "hmo"]
    return None


def _mul_mat_id(node: Tensor) -> Labels:
    _, x, ids, *bias = node.srcs
    assert x is not None and ids is not None
    return [".ok", "muk" if len(x.shape) == 3 else "mk", "..", *([".o"] if bias else []), "muo"]


def _rope(node: Tensor) -> Labels:
    return ["mh.", *("." * len(s.shape) if s else "" for s in node.srcs[1:]), "mh."]


def _attention(node: Tensor) -> Labels | None:
    if node.params["max_bias"]:  # a head's slope depends on its number
        return None
    q, k = node.live_srcs()[:2]
    heads = "h" if k.shape[1] > 1 else "."  # one of keys is for all of queries
    sinks = ["h"] if len(node.srcs) > 6 else []
    return ["mh.", f".{heads}.", f".{heads}.", ".", ".", "..", *sinks, "mh."]


def _axpy(node: Tensor) -> Labels | None:
    """With all neurons: a product with a matrix that is stored the other way round."""
    neurons = node.srcs[2:]
    return None if any(neurons) else ["kd", "mk", *("" for _ in neurons), "md"]


def _set_rows(node: Tensor) -> Labels:
    return ["rc", "mc", ".", "rc"]


def _get_rows(node: Tensor) -> Labels | None:
    table, _ = node.live_srcs()
    # An embedding table is looked up in one place.
    return None if table.role is Role.WEIGHT else [".c", ".", "mc"]


def _concat(node: Tensor) -> Labels:
    letters = list(_LETTERS[: len(node.shape)])
    letters[node.params["axis"]] = "."
    return ["".join(letters)] * 3


def _moe_sum(node: Tensor) -> Labels:
    return ["mud", "mu", "md"]


def _ops() -> Iterator[tuple[str, Rule]]:
    for op in ("silu", "gelu", "gelu_erf", "relu", "sigmoid", "tanh", "exp", "softplus", "neg",
               "sqr", "cont", "scale", "clamp", "fatrelu", "swiglu", "geglu", "reglu",
               "swiglu_clamped"):  # fmt: skip
        yield op, _same
    for op in ("add", "sub", "mul", "div"):
        yield op, _broadcast
    for op in ("rms_norm", "layer_norm", "rms_norm_mul", "soft_max", "l2_norm"):
        yield op, _over_last
    yield "mul_mat", _mul_mat
    yield "mul_mat_id", _mul_mat_id
    yield "axpy_sparse", _axpy
    yield "rope", _rope
    yield "attention", _attention
    yield "set_rows", _set_rows
    yield "get_rows", _get_rows
    yield "concat", _concat
    yield "moe_sum", _moe_sum


RULES: dict[str, Rule] = dict(_ops())
