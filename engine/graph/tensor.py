"""Tensor: one value of a compute graph. Shape, byte strides, the op that makes it, its sources.

Shapes are in numpy order, outermost dimension first. GGUF's reversed order is undone in the reader,
and kernels get ggml's `ne`/`nb` from `Tensor.ne_nb`; nothing else converts.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import prod
from typing import Any

from gguflow.engine.dataclass import dataclass, field

from .dtype import DType

MAX_DIMS = 4
Shape = tuple[int, ...]


class Role(Enum):
    """Where a tensor's data comes from."""

    WEIGHT = "weight"  # a parameter of the model, bound once when the model is loaded
    INPUT = "input"  # written by the host before each run (tokens, positions, sampler settings)
    STATE = "state"  # lives from step to step (the KV cache)
    NODE = "node"  # computed by an op
    VIEW = "view"  # another shape of some tensor's memory; costs nothing


def contiguous_strides(shape: Shape, dtype: DType) -> tuple[int, ...]:
    """Byte strides of a dense tensor; the innermost stride is one block."""
    if not shape:
        return ()
    strides = [dtype.nbytes]
    step = dtype.row_bytes(shape[-1])
    for n in reversed(shape[:-1]):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


@dataclass(eq=False, slots=True)
class Tensor:
    """A node, leaf or view of a graph. Compared by identity.

    name: place in the model (`blk.3.attn.q`) or, for weights, the GGUF name.
    strides: bytes between neighbours of each dimension.
    op, params, srcs: what computes it; op is None for leaves and views.
    view_of, view_offset: for views, the tensor that owns the memory and the byte offset into it.
        Chains are collapsed when built, so `view_of` is never itself a view. An op that writes
        into one of its sources (set_rows) is both a node and a view of that source.
    n_single: of a node's rows along axis 0, how many first ones are of the single class of
        docs/equal-bits.md, the others being chunk; None where rows have no class.
    """

    name: str
    dtype: DType
    shape: Shape
    role: Role
    strides: tuple[int, ...] = ()
    op: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    srcs: tuple[Tensor | None, ...] = ()
    view_of: Tensor | None = None
    view_offset: int = 0
    n_single: int | None = None

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_DIMS:
            raise ValueError(f"{self.name}: {len(self.shape)} dimensions, at most {MAX_DIMS}")
        if any(n < 0 for n in self.shape):
            raise ValueError(f"{self.name}: negative dimension in shape {self.shape}")
        if not self.strides:
            self.strides = contiguous_strides(self.shape, self.dtype)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, padding of strided views not counted."""
        return self.dtype.array_bytes(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes of memory that a tensor which owns it takes; only a weight's rows are padded."""
        if self.role is not Role.WEIGHT or len(self.shape) < 2:
            return self.nbytes
        return max(self.nbytes, self.shape[0] * self.strides[0])

    @property
    def owner(self) -> Tensor:
        """The tensor whose memory this one lives in: itself unless it is a view."""
        return self.view_of if self.view_of is not None else self

    @property
    def is_contiguous(self) -> bool:
        """True when the strides of all dimensions longer than one are those of a dense tensor."""
        dense = contiguous_strides(self.shape, self.dtype)
        units = (*(1 for _ in self.shape[:-1]), self.dtype.block)  # blocks lie along the last axis
        return all(
            s == d
            for s, d, n, unit in zip(self.strides, dense, self.shape, units, strict=False)
            if n > unit
        )

    def live_srcs(self) -> list[Tensor]:
        """Sources that are present (optional sources may be None)."""
        return [s for s in self.srcs if s is not None]

    def ne_nb(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """ggml's (ne, nb): innermost first, padded to four dimensions. Source: ggml.h."""
        ne = list(reversed(self.shape)) + [1] * (MAX_DIMS - len(self.shape))
        nb = list(reversed(self.strides))
        while len(nb) < MAX_DIMS:
            i = len(nb)
            if i == 0:
                nb.append(self.dtype.nbytes)
            else:
                rows = self.dtype.row_bytes(ne[0]) if i == 1 else nb[-1] * ne[i - 1]
                nb.append(rows)
        return tuple(ne), tuple(nb)

    def __repr__(self) -> str:
        what = self.op or self.role.value
        return f"<{self.name}: {self.dtype.name}{list(self.shape)} {what}>"
