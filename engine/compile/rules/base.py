"""What a rule of fusion says, and the questions rules ask of a node's sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gguflow.engine.dataclass import dataclass, field, replace
from gguflow.engine.graph import Role, Tensor, op_spec


@dataclass(frozen=True)
class Rewrite:
    """Replace a node, and the `inner` nodes only it and each other use, by `op(srcs, params)`.

    before: new nodes that `srcs` use; they run right before it.
    """

    op: str
    srcs: tuple[Tensor | None, ...]
    inner: tuple[Tensor, ...]
    params: dict[str, Any] = field(default_factory=dict)
    before: tuple[Tensor, ...] = ()


Rule = Callable[[Tensor], Rewrite | None]


def made_by(t: Tensor | None, op: str) -> Tensor | None:
    return t if t is not None and t.op == op else None


def whole(t: Tensor | None) -> Tensor | None:
    """The node behind views that show all of it in its own order."""
    while t is not None and t.role is Role.VIEW:
        (s,) = t.live_srcs()
        same = t.view_offset == s.view_offset and t.size == s.size
        if not (same and t.is_contiguous and s.is_contiguous):
            return None
        t = s
    return t


def optional(node: Tensor, n: int) -> list[Tensor | None]:
    """The last n sources of a node, None for those left off."""
    most = op_spec(node.op or "").n_srcs[1]
    return [*node.srcs, *(None,) * (most - len(node.srcs))][most - n :]


def fused_node(node: Tensor, rewrite: Rewrite) -> Tensor | None:
    spec = op_spec(rewrite.op)
    params = spec.bind_params(rewrite.params)
    try:
        dtype, shape = spec.infer(*rewrite.srcs, **params)
    except ValueError:
        return None  # the fused op is stricter than its parts
    if (dtype, tuple(shape)) != (node.dtype, node.shape):
        return None
    return replace(node, op=rewrite.op, srcs=rewrite.srcs, params=params)
