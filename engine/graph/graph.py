"""Graph: records ops into a static DAG of tensors.

    g = Graph()
    x = g.input("x", F32, (2, 8))
    w = g.weight("w", F32, (8,))
    with g.scope("blk.0"):
        y = g.rms_norm(x, w, eps=1e-5, name="norm")     # named "blk.0.norm"

Every op in the registry is a method: sources are positional, parameters are keywords. Shapes and
types are inferred and checked as the op is recorded. Views are recorded too, and cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

from .dtype import DType
from .opspec import ParamRangeError, ShapeError, op_spec
from .tensor import Role, Shape, Tensor


class Graph:
    """A compute graph under construction. `nodes` holds the ops in a valid execution order.

    n_single: of the rows of a run, how many first ones are generated tokens; None where the graph
    is of no run.
    """

    def __init__(self) -> None:
        self.leaves: dict[str, Tensor] = {}  # weights, inputs and states by name
        self.nodes: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.n_single: int | None = None
        self._scope: tuple[str, ...] = ()
        self._names: set[str] = set()

    # -- leaves --------------------------------------------------------------------------------

    def _leaf(self, name: str, dtype: DType, shape: Shape, role: Role) -> Tensor:
        old = self.leaves.get(name)
        if old is not None:
            if (old.dtype, old.shape, old.role) != (dtype, tuple(shape), role):
                raise ShapeError(
                    f"{name}: declared as {old.dtype.name}{list(old.shape)} {old.role.value} and "
                    f"again as {dtype.name}{list(shape)} {role.value}"
                )
            return old
        self.leaves[name] = Tensor(name, dtype, tuple(shape), role)
        return self.leaves[name]

    def weight(self, name: str, dtype: DType, shape: Shape) -> Tensor:
        """A parameter, under its GGUF name. Declaring it again returns the same tensor."""
        return self._leaf(name, dtype, shape, Role.WEIGHT)

    def input(self, name: str, dtype: DType, shape: Shape) -> Tensor:
        """A buffer the host writes before each run."""
        return self._leaf(name, dtype, shape, Role.INPUT)

    def state(self, name: str, dtype: DType, shape: Shape) -> Tensor:
        """A buffer that keeps its contents from run to run."""
        return self._leaf(name, dtype, shape, Role.STATE)

    def output(self, t: Tensor) -> Tensor:
        """Mark `t` as a result the host reads after a run."""
        self.outputs.append(t)
        return t

    def drop_unused_weights(self) -> None:
        """Forget the weights that no op reads."""
        used = {s.owner for n in self.nodes for s in n.live_srcs()}
        self.leaves = {
            name: t for name, t in self.leaves.items() if t.role is not Role.WEIGHT or t in used
        }

    # -- names ---------------------------------------------------------------------------------

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names of what is recorded inside."""
        outer = self._scope
        self._scope = (*outer, name)
        try:
            yield
        finally:
            self._scope = outer

    def _name(self, name: str | None, op: str) -> str:
        base = ".".join((*self._scope, name or op))
        unique, i = base, 1
        while unique in self._names:
            i += 1
            unique = f"{base}.{i}"
        self._names.add(unique)
        return unique

    # -- ops -----------------------------------------------------------------------------------

    def op(self, op: str, *srcs: Tensor | None, name: str | None = None, **params: Any) -> Tensor:
        """Record op `op`. Raises ShapeError naming the op, the graph name and the shapes, and
        ParamRangeError."""
        spec = op_spec(op)
        full = self._name(name, op)
        least, most = spec.n_srcs
        if not least <= len(srcs) <= most:
            raise ShapeError(f"{op} at {full}: {len(srcs)} operands, takes {least} to {most}")
        if (missing := spec.lacks(srcs)) is not None:
            raise ShapeError(f"{op} at {full}: operand {missing} is required")
        try:
            bound = spec.bind_params(params)
        except ParamRangeError as e:
            raise ParamRangeError(f"{full}: {e}") from None
        try:
            dtype, shape = spec.infer(*srcs, **bound)
        except ShapeError as e:
            raise ShapeError(f"{full}: {e}") from None
        t = Tensor(full, dtype, tuple(shape), Role.NODE, op=op, params=bound, srcs=srcs)
        if spec.writes_into is not None:
            target = srcs[spec.writes_into]
            assert target is not None
            t.view_of, t.view_offset = target.owner, target.view_offset
            t.strides = target.strides
        self.nodes.append(t)
        return t

    def __getattr__(self, op: str) -> Callable[..., Tensor]:
        if op.startswith("_"):
            raise AttributeError(op)
        try:
            op_spec(op)
        except KeyError as e:
            raise AttributeError(e.args[0]) from None
        return partial(self.op, op)

    # -- views: no op, no cost -------------------------------------------------------------------

    def _view(
        self,
        t: Tensor,
        shape: Shape,
        strides: tuple[int, ...],
        offset: int,
        name: str | None,
        kind: str,
    ) -> Tensor:
        # A node that writes into its source is a view of the source's memory, but a view of it must
        # still depend on the node: srcs carries the order, view_of the memory.
        return Tensor(
            self._name(name, f"{t.name.removeprefix('.'.join(self._scope) + '.')}.{kind}"),
            t.dtype,
            shape,
            Role.VIEW,
            strides=strides,
            srcs=(t,),
            view_of=t.owner,
            view_offset=t.view_offset + offset,
        )

    def reshape(self, t: Tensor, shape: Shape, name: str | None = None) -> Tensor:
        """Same elements, other shape; `t` must be contiguous. One dimension may be -1."""
        known = prod(n for n in shape if n != -1)
        if -1 in shape and known:
            shape = tuple(t.size // known if n == -1 else n for n in shape)
        if prod(shape) != t.size:
            raise ShapeError(
                f"reshape of {t.name}: {list(t.shape)} has {t.size} elements, "
                f"{list(shape)} has {prod(shape)}"
            )
        if not t.is_contiguous:
            raise ShapeError(f"reshape of {t.name}: {list(t.shape)} is not contiguous; use cont")
        return self._view(t, tuple(shape), (), 0, name, "reshape")

    def permute(self, t: Tensor, axes: tuple[int, ...], name: str | None = None) -> Tensor:
        """Dimensions reordered as numpy.transpose does."""
        if sorted(axes) != list(range(len(t.shape))):
            raise ShapeError(f"permute of {t.name}: axes {axes} for shape {list(t.shape)}")
        if t.dtype.is_quantized and axes[-1] != len(axes) - 1:
            raise ShapeError(f"permute of {t.name}: {t.dtype.name} blocks lie along the last axis")
        return self._view(
            t,
            tuple(t.shape[a] for a in axes),
            tuple(t.strides[a] for a in axes),
            0,
            name,
            "permute",
        )

    def transpose(self, t: Tensor, name: str | None = None) -> Tensor:
        """The last two dimensions swapped."""
        n = len(t.shape)
        return self.permute(t, (*range(n - 2), n - 1, n - 2), name)

    def slice(
        self, t: Tensor, axis: int, start: int, stop: int, step: int = 1, name: str | None = None
    ) -> Tensor:
        """`t[start:stop:step]` along one axis."""
        axis %= len(t.shape)
        n = t.shape[axis]
        if not 0 <= start <= stop <= n or step < 1:
            raise ShapeError(
                f"slice of {t.name}: [{start}:{stop}:{step}] of axis {axis} in {list(t.shape)}"
            )
        unit = t.dtype.block if axis == len(t.shape) - 1 else 1
        if start % unit or stop % unit or (unit > 1 and step != 1):
            raise ShapeError(
                f"slice of {t.name}: [{start}:{stop}:{step}] splits a {t.dtype.name} block"
            )
        shape = list(t.shape)
        strides = list(t.strides)
        shape[axis] = -(-(stop - start) // step)
        strides[axis] *= step
        return self._view(
            t, tuple(shape), tuple(strides), start // unit * t.strides[axis], name, "slice"
        )
