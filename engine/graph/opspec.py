"""OpSpec: everything the project knows of an op except its kernels.

One subclass an op, in `engine/ops/<name>.py`, registered by being defined. It infers and checks
shapes, holds the plain numpy reference that every kernel is tested against, says what the op costs,
and yields the cases the tests run.
"""

from __future__ import annotations

import builtins
import operator
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gguflow.engine.dataclass import dataclass, field

from .dtype import DType
from .tensor import Shape, Tensor


class ShapeError(ValueError):
    """Operands that do not fit an op: names the op, the graph name and the shapes."""


class ParamRangeError(TypeError):
    """A number beyond the type that kernels read a parameter as: names the op and the number."""


@dataclass(frozen=True)
class Param:
    """One parameter of an op, in the order the kernels' parameter block holds them.

    fmt: a `struct` code: `f` float32, `i` int32, `q` int64.
    choices: for named variants (`mode="neox"`): the kernel gets the index into this tuple.
    """

    name: str
    fmt: str
    default: Any = None
    choices: tuple[str, ...] = ()
    doc: str = ""


@dataclass(frozen=True)
class Operand:
    """A test operand: what to feed a case with.

    shape: what the op sees, after permutation and slicing.
    data: values broadcast to `shape`, or a callable taking (numpy Generator, shape) that returns
        them; None draws standard normal floats.
    permute: the axes the leaf is permuted by; the leaf is built so that the result has `shape`.
    pad: build the leaf this many elements longer in each dimension, then slice the middle out, so
        that neither the strides nor the offset are those of a dense tensor.
    role: leaf kind: `weight` (a backend may repack it), `input` or `state`.
    """

    shape: Shape
    dtype: str = "f32"
    data: Any = None
    permute: tuple[int, ...] = ()
    pad: Shape = ()
    role: str = "input"


@dataclass(frozen=True)
class Case:
    """One test of an op: operands (None for an absent optional one) and parameters."""

    srcs: tuple[Operand | None, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    tolerance: float | None = None  # NMSE; None takes the spec's


class OpSpec:
    """Base of all op specifications. Subclassing with a `name` registers the op.

    doc: one sentence or two for the ops table: what it computes, and its edge cases.
    operands: one string a source, `name[?] [types] [shape]`; `?` marks an optional one. `n_srcs`
        and `needed` follow from it: those after the last one needed may be left off, others are
        None.
    cost: the formula of `flops`, in words.
    fused_from: for a fused op, the ops whose composition it is.
    in_place: sources whose memory the result may take over, when that source is dense, has the
        result's type and shape, and is used by nobody later.
    writes_into: the source the op updates; its result is a view of that source. `written` says
        which rows change.
    also_writes: sources the op updates beside computing its result; `written_also` says how.
    rows_of: the source whose rows (axis 0) the result's follow one for one, as do those of its
        other sources with as many; None where there is none. An op along the last axis of its
        source follows its rows where it has more axes than that one.
    weights: sources that are matrices its rows are multiplied with.
    across: other sources that any row may read anywhere: tables, keys and values.
    by_column: sources of which column j of the result needs row j alone, of matrices, or entry j of
        the last axis, so that some columns can be computed at a time; none where they cannot.
    looks_up: the source of ids that say which entries of the first one, along its first axis, are
        needed at all; what follows it has an entry for each as well.
    exchanges: the operands from this one on are not copied where other devices made them: its
        kernels bring them, while those of the other devices' nodes with the same ones run.
    exchanges_each: how many of these, one after the other, each device makes.
    optional: backends need no kernel; the op is only made where there is one.
    """

    name: ClassVar[str] = ""
    doc: ClassVar[str] = ""
    operands: ClassVar[tuple[str, ...]] = ()
    params: ClassVar[tuple[Param, ...]] = ()
    n_srcs: ClassVar[tuple[int, int]] = (1, 1)  # least and most sources
    needed: ClassVar[tuple[int, ...]] = (0,)  # sources that must not be None
    cost: ClassVar[str] = "1 an element"
    tolerance: ClassVar[float] = 1e-7  # NMSE against the reference
    fused_from: ClassVar[tuple[str, ...]] = ()
    in_place: ClassVar[tuple[int, ...]] = ()
    writes_into: ClassVar[int | None] = None
    also_writes: ClassVar[tuple[int, ...]] = ()
    rows_of: ClassVar[int | None] = None
    weights: ClassVar[tuple[int, ...]] = ()
    across: ClassVar[tuple[int, ...]] = ()
    by_column: ClassVar[tuple[int, ...]] = ()
    looks_up: ClassVar[int | None] = None
    exchanges: ClassVar[int | None] = None
    exchanges_each: ClassVar[int] = 1
    optional: ClassVar[bool] = False

    def infer(self, *srcs: Tensor | None, **params: Any) -> tuple[DType, Shape]:
        """Type and shape of the result. Raises ShapeError through `self.fail`."""
        raise NotImplementedError

    def reference(self, *srcs: np.ndarray | None, **params: Any) -> np.ndarray:
        """The oracle. Float operands of any type arrive as float32, integers as they are."""
        raise NotImplementedError

    def written(self, *srcs: np.ndarray | None, **params: Any) -> np.ndarray:
        """Rows (first axis) of the `writes_into` source that the op changes, as indices.

        The other rows keep their bytes: quantizing what was read back need not give them again.
        """
        raise NotImplementedError

    def written_also(
        self, *srcs: np.ndarray | None, **params: Any
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each source of `also_writes`: its values afterwards, and the rows that change."""
        raise NotImplementedError

    def flops(self, out: Tensor) -> int:
        """Floating-point (or integer multiply-add) operations of computing `out`."""
        return out.size

    def bytes(self, out: Tensor) -> int:
        """Bytes moved when every operand is read and the result written once."""
        return out.nbytes + sum(s.nbytes for s in out.live_srcs())

    def cost_at(self, out: Tensor, n_past: int) -> tuple[int, int]:
        """(bytes, flops) of a step whose first token is at position `n_past`. Only ops that read
        part of a state, as attention does, cost less than their shapes say."""
        return self.bytes(out), self.flops(out)

    def cases(self) -> Iterator[Case]:
        """Test cases: odd sizes, views, permuted and broadcast operands, all types."""
        raise NotImplementedError

    def place_of(self, out: Tensor, i: int) -> tuple[int, tuple[int, ...]] | None:
        """Where operand i stands in `out` as it is: the byte it begins at, and its strides there.
        None where it does not. An op of which this is all has nothing to do for an operand that
        lies there already, see `is_in_place`."""
        return None

    # -- helpers -------------------------------------------------------------------------------

    def lacks(self, srcs: Sequence[Tensor | None]) -> int | None:
        """The first operand that is needed and not there."""
        return next((i for i in self.needed if i >= len(srcs) or srcs[i] is None), None)

    def fail(self, message: str, *srcs: Tensor | None) -> ShapeError:
        """A ShapeError naming the op and every operand with its shape."""
        shapes = ", ".join(
            "none" if s is None else f"{s.name} {s.dtype.name}{list(s.shape)}" for s in srcs
        )
        return ShapeError(f"{self.name}: {message} (operands: {shapes})")

    def bind_params(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults filled in. Unknown, missing and mistyped ones raise TypeError naming the op,
        numbers out of their type's range ParamRangeError."""
        known = {p.name: p for p in self.params}
        if unknown := set(given) - set(known):
            raise TypeError(f"{self.name}: unknown parameter {', '.join(sorted(unknown))}")
        bound: dict[str, Any] = {}
        for p in self.params:
            value = given.get(p.name, p.default)
            if value is None:
                raise TypeError(f"{self.name}: parameter {p.name} is required")
            if p.choices:
                if value not in p.choices:
                    raise TypeError(f"{self.name}: {p.name}={value!r}, expected one of {p.choices}")
            else:
                try:
                    value = float(value) if p.fmt == "f" else operator.index(value)
                    struct.pack("<" + p.fmt, value)  # native floats are not held to their range
                except (TypeError, ValueError, OverflowError, struct.error) as e:
                    kind = "a number" if p.fmt == "f" else "an integer"
                    error = TypeError
                    if isinstance(e, (OverflowError, struct.error)):
                        error = ParamRangeError
                        kind += f" of {8 * struct.calcsize(p.fmt)} bits"
                    raise error(f"{self.name}: {p.name}={value!r}, expected {kind}") from None
            bound[p.name] = value
        return bound

    def pack_params(self, params: Mapping[str, Any]) -> builtins.bytes:
        """The parameter block kernels read: native sizes, no padding beyond C's own alignment."""
        fmt = "@" + "".join(p.fmt for p in self.params)
        values = [
            p.choices.index(params[p.name]) if p.choices else params[p.name] for p in self.params
        ]
        return struct.pack(fmt, *values)

    def __init_subclass__(cls) -> None:
        if cls.operands:
            cls.needed = tuple(
                i for i, o in enumerate(cls.operands) if not o.split()[0].endswith("?")
            )
            cls.n_srcs = (cls.needed[-1] + 1, len(cls.operands))
        if cls.name:
            if cls.name in _REGISTRY:
                raise ValueError(f"op {cls.name} is defined twice")
            _REGISTRY[cls.name] = cls()


_REGISTRY: dict[str, OpSpec] = {}


def op_spec(name: str) -> OpSpec:
    """The specification of op `name`. Raises KeyError listing what exists."""
    try:
        return _REGISTRY[name]
    except KeyError:
        raise KeyError(f"unknown op {name!r}; known: {', '.join(sorted(_REGISTRY))}") from None


def written_owners(node: Tensor) -> list[Tensor]:
    """What an op writes into besides memory of its own."""
    if node.op is None:
        return []
    also = (node.srcs[i] for i in op_spec(node.op).also_writes)
    return [*([node.view_of] if node.view_of else []), *(s.owner for s in also if s)]


def is_in_place(node: Tensor, i: int) -> bool:
    """Whether operand i of an op lies where it stands in the result."""
    s = node.srcs[i]
    place = op_spec(node.op).place_of(node, i) if node.op is not None and s is not None else None
    if s is None or place is None or s.owner is not node.owner:
        return False
    offset, strides = place
    return (s.view_offset, s.strides) == (node.view_offset + offset, strides)


def exchanged(node: Tensor) -> tuple[Tensor, ...]:
    """What a node exchanges with those of other devices, in their order; nothing for most."""
    first = op_spec(node.op).exchanges if node.op is not None else None
    return () if first is None else tuple(s for s in node.srcs[first:] if s is not None)


def exchanged_by_rank(node: Tensor) -> list[tuple[Tensor, ...]]:
    """The same, of each device what it made."""
    flat = exchanged(node)
    each = op_spec(node.op).exchanges_each if node.op is not None else 1
    return [flat[i : i + each] for i in range(0, len(flat), each)]


def all_ops() -> Sequence[OpSpec]:
    """Every registered op, by name."""
    return [_REGISTRY[n] for n in sorted(_REGISTRY)]
