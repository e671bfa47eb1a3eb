"""Placement: which backend holds each tensor and runs each node.

Weights are placed first, by the caller's overrides and layer split; a node then runs where its
largest placed operand lives if that backend has a kernel for it, otherwise on the next backend that
has one, and the fallback is reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.graph import Role, Tensor

from .types import BackendInfo


@dataclass(frozen=True)
class PlacementRules:
    """Inputs to placement.

    order: backends by preference; the first is the default.
    overrides: (regular expression, backend name), the first that is found anywhere in a name wins:
        one rule for weights, states, inputs and nodes, as llama.cpp's -ot has it for weights.
        `^` and `$` hold it to the whole name.
    """

    order: Sequence[BackendInfo]
    overrides: Sequence[tuple[str, str]] = ()


@dataclass
class Placement:
    """Result: backend name by tensor, and what could not run where it was wanted."""

    of: dict[Tensor, str] = field(default_factory=dict)
    fallbacks: list[tuple[Tensor, str, str]] = field(default_factory=list)  # node, wanted, got


def layer_overrides(
    n_layer: int, n_gpu_layers: int, device: str, host: str = "cpu"
) -> tuple[tuple[str, str], ...]:
    """Overrides that put the last `n_gpu_layers` layers, and their KV cache, on a device.

    As llama.cpp's -ngl: the output head counts as one more layer, and goes first to last. With all
    of them everything is on the device, the embeddings too.
    """
    if n_gpu_layers > n_layer:
        return ((".*", device),)
    layers = "|".join(str(i) for i in range(max(n_layer - n_gpu_layers, 0), n_layer))
    some = ((rf"^(?:blk|kv|ssm)\.(?:{layers})\..*", device),) if layers else ()
    return (*some, (".*", host))


class PlacementError(ValueError):
    """No backend can run a node, or an override names a backend that is not there."""


def place(
    nodes: Sequence[Tensor], leaves: Mapping[str, Tensor], rules: PlacementRules
) -> Placement:
    """Place every leaf and node. Raises PlacementError naming the tensor or the override."""
    default = rules.order[0].name
    by_name = {b.name: b for b in rules.order}
    asked = _overrides(rules) if rules.overrides else None
    result = Placement(place_leaves(leaves, rules))
    for node in nodes:
        wanted = asked(node) if asked is not None else None
        got = wanted = wanted or _home(node, result, default)
        if not by_name[wanted].supports(node):
            got = _first_able(node, wanted, rules.order)
        if got != wanted:
            result.fallbacks.append((node, wanted, got))
        result.of[node] = got
    return result


def place_leaves(leaves: Mapping[str, Tensor], rules: PlacementRules) -> dict[Tensor, str]:
    """Where leaves are, which depends on their names alone. Raises PlacementError."""
    asked = _overrides(rules)
    return {t: asked(t) or rules.order[0].name for t in leaves.values()}


def _overrides(rules: PlacementRules) -> Callable[[Tensor], str | None]:
    """What the overrides say of a tensor."""
    by_name = {b.name: b for b in rules.order}
    compiled = []
    for pattern, target in rules.overrides:
        if target not in by_name:
            raise PlacementError(
                f"`overrides` {pattern}={target}: no such backend; have {', '.join(by_name)}"
            )
        try:
            compiled.append((re.compile(pattern), target))
        except re.error as e:
            raise PlacementError(f"`overrides` {pattern}={target}: bad pattern: {e}") from None

    def asked(t: Tensor) -> str | None:
        return next((backend for rx, backend in compiled if rx.search(t.name)), None)

    return asked


def _home(node: Tensor, placed: Placement, default: str) -> str:
    """Where the node's operands are: a state it writes, else its largest weight, else its input."""
    if node.view_of is not None:
        return placed.of[node.view_of]
    owners = [s.owner for s in node.live_srcs()]
    weights = [o for o in owners if o.role is Role.WEIGHT and len(o.shape) > 1]
    if weights:
        return placed.of[max(weights, key=lambda w: w.nbytes)]
    states = [o for o in owners if o.role is Role.STATE]
    made = [o for o in owners if o.role is Role.NODE]
    for group in (states, made):
        if group:
            return placed.of[group[0]]
    return default


def _first_able(node: Tensor, wanted: str, order: Sequence[BackendInfo]) -> str:
    ranked = sorted(order, key=lambda b: b.name != wanted)
    for b in ranked:
        if b.supports(node):
            return b.name
    tried = ", ".join(b.name for b in ranked)
    shapes = ", ".join(f"{s.dtype.name}{list(s.shape)}" for s in node.live_srcs())
    raise PlacementError(f"{node.name}: no backend runs {node.op}({shapes}); tried {tried}")
