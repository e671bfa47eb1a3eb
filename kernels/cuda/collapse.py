"""Tensors that are walked together, described by fewer dimensions.

Kernels know four dimensions and are fastest when the inner ones are long and nothing is indexed
modulo, so launches first look for the simplest description of the same elements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod

from gguflow.engine.graph.tensor import MAX_DIMS

from .launch import Operand

CACHED_BYTES = 8 << 20  # a tensor this small stays in the level 2 cache while it is repeated
RUN_BYTES = 4096  # contiguous pieces of this size are read at full speed in any order


@dataclass(frozen=True)
class _Dim:
    """n: length. m: the last operand's own length, of which n is a multiple. steps: in bytes."""

    n: int
    m: int
    steps: tuple[int, ...]


def collapse(*operands: Operand) -> list[Operand]:
    """The same walk over fewer dimensions.

    All operands have the lengths of the first; the last one's may also divide them: it is repeated.
    A dimension it is repeated along gets a stride of zero, which takes a second dimension where the
    last operand has more than one element; where four do not suffice, outer ones are left to be
    read modulo. Dimensions merge when in every operand the outer one only continues the inner.
    """
    first, last = operands[0], operands[-1]
    dims = [
        _Dim(n, m, tuple(o.nb[i] for o in operands))
        for i, (n, m) in enumerate(zip(first.ne, last.ne, strict=True))
        if n > 1
    ]
    dims = dims or [_Dim(1, 1, tuple(o.nb[0] for o in operands))]
    dims = _merged([d if d.m > 1 else _Dim(d.n, d.n, (*d.steps[:-1], 0)) for d in dims])
    while len(dims) < MAX_DIMS and (modulo := [i for i, d in enumerate(dims) if d.m < d.n]):
        i = modulo[0]
        dims = _merged([*dims[:i], *_split(dims[i], dims[i].m, repeated=True), *dims[i + 1 :]])
    dims = _repeats_first(dims, last.dtype.nbytes)

    rest = [_Dim(1, 1, (0,) * len(operands))] * (MAX_DIMS - len(dims))
    described = [
        replace(o, ne=tuple(d.n for d in dims + rest), nb=tuple(d.steps[k] for d in dims + rest))
        for k, o in enumerate(operands)
    ]
    described[-1] = replace(described[-1], ne=tuple(d.m for d in dims + rest))
    return described


def _split(d: _Dim, n: int, repeated: bool = False) -> tuple[_Dim, _Dim]:
    """Two dimensions for one, the inner of length n. repeated: the last operand ends with it."""
    outer = [step * n for step in d.steps]
    if repeated:
        outer[-1] = 0
    return _Dim(n, n, d.steps), _Dim(d.n // n, d.n // n, tuple(outer))


def _merged(dims: list[_Dim]) -> list[_Dim]:
    out = dims[:1]
    for d in dims[1:]:
        last = out[-1]
        whole = last.m == last.n and d.m == d.n
        if whole and all(s == t * last.n for s, t in zip(d.steps, last.steps, strict=True)):
            out[-1] = _Dim(last.n * d.n, last.n * d.n, last.steps)
        else:
            out.append(d)
    return out


def _repeats_first(dims: list[_Dim], nbytes: int) -> list[_Dim]:
    """Outer dimensions so ordered that a large repeated operand is read from memory once: what
    reads the same piece of it follows at once, while the piece is in the cache."""
    used = prod(d.m for d in dims if d.steps[-1]) * nbytes
    if used <= CACHED_BYTES or all(d.steps[-1] for d in dims[1:]) or not dims[0].steps[-1]:
        return dims
    piece = gcd(dims[0].n, RUN_BYTES)  # elements, so a few times RUN_BYTES
    if len(dims) < MAX_DIMS and dims[0].m == dims[0].n > piece >= RUN_BYTES // nbytes:
        dims = [*_split(dims[0], piece), *dims[1:]]
    if dims[0].n * nbytes < RUN_BYTES:
        return dims
    return [dims[0], *sorted(dims[1:], key=lambda d: d.steps[-1] != 0)]
