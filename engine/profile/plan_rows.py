"""What a profile knows of a plan before it runs: one PlanRow an op, built once a plan.

A step then only has to store its clock reads; everything else about its ops is here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import OpSpec, Shape, Tensor, op_spec


@dataclass(frozen=True, slots=True)
class PlanRow:
    """The facts of one op of a plan.

    name: graph name; shapes and types: the result's, then each source's that is present (numpy
    order). bytes and flops: what one run moves and computes; cost, where the work grows with the
    context (attention), gives (bytes, flops) of a step whose first token is at that position.
    """

    name: str
    op: str
    backend: str
    kernel: str
    shapes: tuple[Shape, ...]
    types: tuple[str, ...]
    bytes: int
    flops: int
    segment: int = 0
    index: int = 0  # within the segment
    cost: Callable[[int], tuple[int, int]] | None = None

    @classmethod
    def of(
        cls, node: Tensor, *, backend: str, kernel: str = "", segment: int = 0, index: int = 0
    ) -> PlanRow:
        """The row of a graph node, its cost as its OpSpec states it."""
        if node.op is None:
            raise ValueError(f"{node.name}: a {node.role.value} is no op, so it has no profile row")
        spec = op_spec(node.op)
        tensors = [node, *node.live_srcs()]
        # Most ops cost the same at every position; only those that say otherwise are asked again.
        varies = type(spec).cost_at is not OpSpec.cost_at
        return cls(
            name=node.name,
            op=node.op,
            backend=backend,
            kernel=kernel or node.op,
            shapes=tuple(t.shape for t in tensors),
            types=tuple(t.dtype.name for t in tensors),
            bytes=spec.bytes(node),
            flops=spec.flops(node),
            segment=segment,
            index=index,
            cost=partial(spec.cost_at, node) if varies else None,
        )


# The rows of a whole plan in the order its ops run, all segments one after the other.
PlanRows = tuple[PlanRow, ...]
