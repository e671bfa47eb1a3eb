"""OpSpec: everything the project knows of an op except its kernels.

One subclass an op, in `engine/ops/<name>.py`, registered by being defined. It infers and checks
shapes, holds the plain numpy reference that every kernel is tested against, says what the op costs,
and yields the cases the tests run.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from .dtype import DType
from .tensor import Shape, Tensor


class ShapeError(ValueError):
    """Operands that do not fit an op: names the op, the graph name and the shapes."""


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

    data: values, or a callable taking a numpy Generator; None draws standard normal floats.
    permute: build the tensor transposed so that after this permutation it has `shape`.
    view: (axis, start, stop, step): build it larger, then slice, so that strides are not dense.
    """

    shape: Shape
    dtype: str = "f32"
    data: Any = None
    permute: tuple[int, ...] = ()
    pad: Shape = ()  # build this many elements larger in each dimension, then slice back
    role: str = "input"


@dataclass(frozen=True)
class Case:
    """One test of an op: operands (None for an absent optional one) and parameters."""

    srcs: tuple[Operand | None, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    tolerance: float | None = None  # NMSE; None takes the spec's


class OpSpec:
    """Base of all op specifications. Subclassing with a `name` registers the op."""

    name: ClassVar[str] = ""
    doc: ClassVar[str] = ""
    params: ClassVar[tuple[Param, ...]] = ()
    n_srcs: ClassVar[tuple[int, int]] = (1, 1)  # least and most sources
    tolerance: ClassVar[float] = 1e-7  # NMSE against the reference
    in_place: ClassVar[tuple[int, ...]] = ()  # sources whose memory the result may take over
    writes_into: ClassVar[int | None] = None  # source the op updates; the result is a view of it

    def infer(self, *srcs: Tensor | None, **params: Any) -> tuple[DType, Shape]:
        """Type and shape of the result. Raises ShapeError through `self.fail`."""
        raise NotImplementedError

    def reference(self, *srcs: np.ndarray | None, **params: Any) -> np.ndarray:
        """The oracle. Float operands of any type arrive as float32, integers as they are."""
        raise NotImplementedError

    def flops(self, out: Tensor) -> int:
        """Floating-point (or integer multiply-add) operations of computing `out`."""
        return out.size

    def bytes(self, out: Tensor) -> int:
        """Bytes moved when every operand is read and the result written once."""
        return out.nbytes + sum(s.nbytes for s in out.live_srcs())

    def cases(self) -> Iterator[Case]:
        """Test cases: odd sizes, views, permuted and broadcast operands, all types."""
        raise NotImplementedError

    # -- helpers -------------------------------------------------------------------------------

    def fail(self, message: str, *srcs: Tensor | None) -> ShapeError:
        """A ShapeError naming the op and every operand with its shape."""
        shapes = ", ".join(
            "none" if s is None else f"{s.name} {s.dtype.name}{list(s.shape)}" for s in srcs
        )
        return ShapeError(f"{self.name}: {message} (operands: {shapes})")

    def bind_params(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults filled in; unknown and missing parameters raise TypeError naming the op."""
        known = {p.name: p for p in self.params}
        if unknown := set(given) - set(known):
            raise TypeError(f"{self.name}: unknown parameter {', '.join(sorted(unknown))}")
        bound: dict[str, Any] = {}
        for p in self.params:
            value = given.get(p.name, p.default)
            if value is None:
                raise TypeError(f"{self.name}: parameter {p.name} is required")
            if p.choices and value not in p.choices:
                raise TypeError(f"{self.name}: {p.name}={value!r}, expected one of {p.choices}")
            bound[p.name] = value
        return bound

    def pack_params(self, params: Mapping[str, Any]) -> bytes:
        """The parameter block kernels read: native sizes, no padding beyond C's own alignment."""
        fmt = "@" + "".join(p.fmt for p in self.params)
        values = [
            p.choices.index(params[p.name]) if p.choices else params[p.name] for p in self.params
        ]
        return struct.pack(fmt, *values)

    def __init_subclass__(cls) -> None:
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


def all_ops() -> Sequence[OpSpec]:
    """Every registered op, by name."""
    return [_REGISTRY[n] for n in sorted(_REGISTRY)]
