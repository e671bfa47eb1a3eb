"""Products of several columns with what stands around them: what the launch files that
mul_mat_batch.py chooses from are given, and the columns they read."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gguflow.engine.graph import Role, Tensor

from .elementwise import cpp_bool
from .launch import Kernel, Launch, Operand, Rounded, RoundedNorm, ceil_div, pack, places_of
from .mul_mat_rows import repeated
from .mul_mat_vec import STATES
from .rope import rope_numbers

PLAIN, GLU, QKV = range(3)  # as in columns.cuh
KINDS = ("PLAIN", "GLU", "QKV")  # their names
# As in columns_round.cu.
TILES, FRAGMENTS, FRAGMENTS_IN_ORDER, TILES_IN_ORDER, ROWS = range(5)
_NIBBLES = ("q4_0",)  # whose lanes hold elements 4 t and following of both halves of 32
_NO_ROPE = bytes(40)
_MASKS = (0x000F000F, 0x00F000F0)  # of nibbles


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values: what turns them and where they go.

    first: 0 where the first of the weights makes queries, 2 where it makes values.
    """

    pos: Operand
    rows: Operand
    states: tuple[Operand, Operand]
    factors: Operand | None
    rope: bytes
    head_dim: int
    neox: bool
    first: int


@dataclass(frozen=True)
class Product:
    """dst = x w^T for w in `weights`, of one type and distance of rows, and what follows of `kind`.

    norm: weights of a norm that x gets first. value: what x holds, if other products may read it.
    chunk: whether its columns are of the chunk class of docs/equal-bits.md, where classes count.
    ready: where x is rounded already.
    """

    kind: int
    weights: tuple[Operand, ...]
    x: Operand
    dst: Operand
    norm: Operand | None = None
    eps: float = 0.0
    r: Operand | None = None
    heads: Heads | None = None
    value: Tensor | None = None
    chunk: bool = False
    ready: Rounded | None = None

    @property
    def m(self) -> int:
        return self.x.rows

    @property
    def k(self) -> int:
        return self.x.ne[0]

    @property
    def n(self) -> int:
        """Rows of all weights."""
        return sum(w.ne[1] for w in self.weights)

    @property
    def pairs(self) -> list[int]:
        """Of rows that stay together, for each matrix."""
        if self.kind == GLU:
            return [self.weights[0].ne[1]]
        return [ceil_div(w.ne[1], 2) for w in self.weights]

    def tiles(self, pairs: int) -> int:
        """Of so many pairs of one matrix each."""
        return sum(ceil_div(p, pairs) for p in self.pairs)

    @property
    def rounded(self) -> str:
        """The type that the columns become."""
        return "bf16" if self.weights[0].dtype.name == "bf16" else "f16"


def products(
    node: Tensor, srcs: Sequence[Operand | None], dst: Operand | None = None, mixed: bool = False
) -> list[Product]:
    """The products of a node: those of values by themselves if they have a type of their own,
    unless `mixed`.

    Nothing where the operands are not of one kind.
    """
    op, p = node.op or "", node.params
    dst = dst or Operand.of(node, 0)
    if op == "norm_qkv_rope":
        return _heads_products(node, srcs, dst, mixed)
    given = [s for s in srcs if s is not None]
    norm, eps = None, 0.0
    if op.startswith("norm_"):
        x, norm, *weights = given
        eps = p["eps"]
        value = node.srcs[0]
        if not _norm_ok(norm):
            return []
    else:
        n = 2 if op == "mul_mat_swiglu" else 1
        weights, x, value = given[:n], given[n], node.srcs[n]
    value = _kept(value)
    if len({(w.dtype, w.nb[1]) for w in weights[:2]}) > 1 and op.endswith("swiglu"):
        return []
    if op.endswith("swiglu"):
        return [Product(GLU, tuple(weights[:2]), x, dst, norm, eps, value=value)]
    r = given[2] if op == "mul_mat_add" else None
    if r is not None:
        r = repeated(r, node.ne_nb()[0])
        if row_step(r) is None:
            return []
    return [Product(PLAIN, (weights[0],), x, dst, norm, eps, r, value=value)]


def columns_between(p: Product, begin: int, end: int, axis: int) -> Product:
    """The product of the rows from begin to end along an axis (of `ne`) of what x and, unless it is
    of heads, dst hold."""

    def some(o: Operand, axis: int) -> Operand:
        ne = (*o.ne[:axis], end - begin, *o.ne[axis + 1 :])
        return o.shift(begin * o.nb[axis], ne)

    if p.heads is None:
        r = None if p.r is None else some(p.r, axis)
        return replace(p, x=some(p.x, axis), dst=some(p.dst, axis), r=r, value=None)
    heads = replace(p.heads, pos=some(p.heads.pos, 0))
    if heads.rows.address:
        heads = replace(heads, rows=some(heads.rows, 0))
    else:  # the states' rows are the columns
        keys, values = heads.states
        heads = replace(heads, states=(some(keys, 1), some(values, 1)))
    return replace(p, x=some(p.x, 1), dst=some(p.dst, 2), heads=heads, value=None)


def _norm_ok(norm: Operand) -> bool:
    return norm.nb[0] == 4 and norm.address % 16 == 0


def _kept(value: Tensor | None) -> Tensor | None:
    """A value that does not change between two ops that read it."""
    return None if value is not None and value.owner.role is Role.STATE else value


def _heads_products(
    node: Tensor, srcs: Sequence[Operand | None], dst: Operand, mixed: bool
) -> list[Product]:
    x, wq, wk, wv, pos, rows, k_state, v_state = (s for s in (srcs[0], *srcs[2:9]) if s is not None)
    norm, value = srcs[1], _kept(node.srcs[0])
    if norm is not None and not _norm_ok(norm):
        return []
    factors = srcs[9] if len(srcs) > 9 else None
    p, head_dim = dict(node.params), node.shape[2]
    heads = Heads(pos, rows, (k_state, v_state), factors, rope_numbers(p, head_dim), head_dim,
                  p["mode"] == "neox", 0)  # fmt: skip
    make = Product(QKV, (wq, wk, wv), x, dst, norm, p["eps"], heads=heads, value=value)
    kinds = [(w.dtype, w.nb[1]) for w in (wq, wk, wv)]
    if kinds[0] != kinds[1]:
        return []
    if kinds[2] == kinds[0] or mixed:
        return [make]
    values = replace(make, weights=(wv,), heads=replace(heads, first=2))
    return [replace(make, weights=(wq, wk)), values]


def row_step(r: Operand) -> int | None:
    """Bytes between rows that are equally far from each other, or None."""
    step, n = r.nb[1] if r.ne[1] > 1 else 0, r.ne[1]
    for length, stride in zip(r.ne[2:], r.nb[2:], strict=True):
        if length == 1:
            continue
        if n > 1 and stride != n * step:
            return None
        step, n = (stride if n == 1 else step), n * length
    return step


def is_all(x: Operand, dst: Operand, at: int) -> bool:
    """Whether x is the rows of a result along its dimension `at`, of all the elements before it."""
    n, dense = 1, True
    for length, step in zip(dst.ne[:at], dst.nb[:at], strict=True):
        dense &= length == 1 or step == 4 * n
        n *= length
    return dense and (x.address, x.ne[0], x.rows, x.nb[1]) == (
        dst.address, n, dst.ne[at], dst.nb[at]
    )  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Addresses in scratch memory; none of what is not used."""

    x: int = 0
    scales: int = 0
    turns: int = 0
    parts: int = 0
    end: int = 0


def layout(p: Product, columns: int, parts: int = 0, address: int = 0) -> Layout:
    """Room for x rounded, in groups of `columns`, and `parts` bytes of sums."""
    half = p.heads.head_dim // 2 if p.heads else 0
    x = 2 * ceil_div(p.m, columns) * columns * p.k
    return Layout(*places_of((x, 4 * p.m, 8 * p.m * half, parts), 256, address))


def are_of_halves(p: Product) -> bool:
    """Whether lanes of fragments hold fours of both halves of 32, or eights."""
    return p.weights[0].dtype.name in _NIBBLES


def _order(p: Product) -> bytes:
    """`ColumnsOrder` of columns_round.cu."""
    split = int(p.weights[0].dtype.is_quantized)
    return struct.pack("@3i", *((4, 16, 1) if are_of_halves(p) else (8, 4, split)))


def round_launch(p: Product, at: Layout, columns: int, how: int) -> Launch:
    """The rows of x, normalized, as f16 with a scale each, or as bf16. how: they lie."""
    heads, scaled = p.heads, p.rounded == "f16"
    scales = at.scales if scaled else 0
    numbers = struct.pack(
        "@6P", 0 if p.norm is None else p.norm.address, at.x, scales,
        heads.pos.address if heads else 0, heads.factors.address if heads and heads.factors else 0,
        at.turns if heads else 0,
    ) + (heads.rope if heads else _NO_ROPE)  # fmt: skip
    numbers += struct.pack("@f", p.eps) + _order(p)
    numbers += struct.pack("@3i", columns, how, heads.head_dim // 2 if heads else 0)
    threads = 512 if p.k <= 16384 else 1024
    each = 1 << (ceil_div(p.k, 8 * threads) - 1).bit_length()
    types = f"{p.rounded}, {cpp_bool(scaled)}, {cpp_bool(p.norm is not None)}, {each}, {threads}"
    kernel = Kernel("columns_round.cu", f"round_columns<{types}>")
    args, grid = pack(p.x, numbers), (p.m, 1, 1)
    norm = None
    if how == ROWS and p.norm is not None and not heads:
        norm = RoundedNorm(p.norm.address, p.eps, p.k, Rounded(p.rounded, at.x, scales))
    return Launch(kernel, grid, (threads, 1, 1), args, dependent=True, leaves=p.value, norm=norm)


def arguments(
    p: Product, at: Layout, tiles: int, splits: int, w_stages: int, x_stages: int, w_stride: int
) -> bytes:
    """`ColumnsArgs` of columns.cuh."""

    def three(values: Sequence[int]) -> list[int]:
        return [*values, 0, 0, 0][:3]

    heads, r = p.heads, p.r
    states = heads.states if heads else ()
    two = [*states, None, None][:2]
    body = struct.pack(
        "@12P5q",
        *three([w.address for w in p.weights]), at.x,
        at.scales if p.rounded == "f16" else 0,
        0 if r is None else r.address, at.turns, heads.rows.address if heads else 0,
        *(0 if s is None else s.address for s in two), p.dst.address, at.parts,
        p.weights[0].nb[1], 0 if r is None else row_step(r) or 0, 0 if r is None else r.nb[0],
        *(0 if s is None else s.nb[1] for s in two),
    )  # fmt: skip
    n = p.dst.ne[0] * (p.dst.ne[1] if heads else 1)
    body += struct.pack(
        "@21i2I", *three(p.pairs), *three([w.ne[1] for w in p.weights]),
        p.kind, heads.first if heads else 0, n, p.m, p.k, splits, tiles,
        heads.head_dim if heads else 0, int(heads.neox) if heads else 0,
        *(0 if s is None else STATES.index(s.dtype.name) for s in two),
        states[0].ne[1] if states else 0, w_stages, x_stages, w_stride,
        *_MASKS,
    )  # fmt: skip
    return body + bytes(-len(body) % 8) + struct.pack("@q", n if heads else p.dst.nb[1] // 4)


def turns_by(p: Product) -> bytes:
    """`Turns` of rope.cuh."""
    if p.heads is None:
        return bytes(56)
    factors = p.heads.factors
    return p.heads.rope + struct.pack("@2P", p.heads.pos.address, factors.address if factors else 0)


def rows_ok(w: Operand, aligned: int, multiple: int) -> bool:
    """Whether rows of w start at multiples of `aligned` bytes and are dense, of a `multiple`."""
    t = w.dtype
    return (
        (t.is_quantized or t.name in ("f16", "bf16"))
        and w.ne[2] == w.ne[3] == 1
        and w.ne[0] % multiple == 0
        and w.ne[0] < 1 << 24
        and 0 < w.ne[1] < 1 << 30
        and w.nb[0] == t.nbytes
        and w.address % aligned == w.nb[1] % aligned == 0
    )


def columns_ok(x: Operand) -> bool:
    """Whether round_columns can read x."""
    aligned = x.nb[0] == 4 and not any(b % 16 for b in (x.address, *x.nb[1:]))
    return aligned and x.rows < 1 << 20 and x.ne[0] <= 1 << 16
