"""A part of a plan: what one stage runs at a stretch, what it takes from others, what it gives.

Every process of a pipeline makes the plan of the whole model, in which its own device is what it is
and the others are stages. The plans are the same but for these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from gguflow.engine.backends.base import DeviceId
from gguflow.engine.compile import Plan, Recv
from gguflow.engine.compile.memory import SHARED_OUTPUT_BYTES
from gguflow.engine.dataclass import dataclass, fields
from gguflow.engine.graph import Role, Tensor
from gguflow.engine.options import OptionError, Options
from gguflow.engine.plan_key import PlanKey

from .crossing import Crossing

KIND = "stage"  # of devices that are a stage in another process
# Fields of `Options` that a plan depends on, and that every process has the same of.
_COMMON = (
    "n_threads", "n_threads_batch", "n_ctx", "n_seqs", "n_cache", "n_ubatch", "n_batch", "k_type",
    "v_type", "fuse",
)  # fmt: skip


@dataclass(frozen=True)
class PlanId:
    """A plan and a part of it, for a process that makes the plan too. options: those of `_COMMON`.
    rewrites: of its graph, those that a model does not have by itself; equal ones compare so. side:
    of a stage that runs at the same time as others, all of whose segments the part is, the first
    of them `segment`: a number, for there may be several of a plan, and where it meets them."""

    key: PlanKey
    segment: int
    options: tuple[tuple[str, Any], ...]
    rewrites: tuple[Any, ...] = ()
    side: tuple[int, Crossing] | None = None


@dataclass(frozen=True, eq=False)
class Part:
    """nodes: in order. takes: values and inputs that it reads and does not make; gives: those that
    others read, and small outputs; keeps: other outputs. states: its own. All are owners."""

    plan: PlanId
    backend: str
    index: int
    nodes: Sequence[Tensor]
    takes: Sequence[Tensor]
    gives: Sequence[Tensor]
    keeps: Sequence[Tensor]
    states: Sequence[Tensor]
    fingerprint: str


def common(options: Options) -> tuple[tuple[str, Any], ...]:
    """What a plan depends on."""
    known = {f.name for f in fields(Options)}
    assert known.issuperset(_COMMON)
    return tuple((name, getattr(options, name)) for name in _COMMON)


def plan_id(plan: Plan, segment: int, side: tuple[int, Crossing] | None = None) -> PlanId:
    """Its name elsewhere. Raises ValueError for a plan that no model has made."""
    if plan.made_for is None:
        raise ValueError("a plan for stages is one of a model's")
    setup, key = plan.made_for
    n = setup.n_own_rewrites
    return PlanId(key, segment, common(setup.options), setup.rewrites[n:], side)


def part_of(plan: Plan, first: Tensor) -> Part:
    """The part that begins with a node. Raises OptionError for a model whose stages would have to
    read each other's caches."""
    index = next(i for i, s in enumerate(plan.segments) if s.nodes and s.nodes[0] is first)
    return part_at(plan, index)


def part_at(plan: Plan, index: int) -> Part:
    """The same by its number among the plan's segments."""
    segment = plan.segments[index]
    space = plan.spaces[segment.backend]
    read = dict.fromkeys(s.owner for n in segment.nodes for s in n.live_srcs())
    # Inputs are written by whoever runs the plan, wherever they are placed.
    there = [t for t in read if t.role is Role.INPUT or plan.space_of(t) != space]
    for t in there:
        if t.role is Role.STATE:
            raise OptionError(f"`devices`: {t.name} is read by layers of another stage")
    made = dict.fromkeys(n.owner for n in segment.nodes if n.owner.role is Role.NODE)
    crossing = {
        o for s in plan.steps if isinstance(s, Recv) and s.meeting.source == segment.backend
        for o in s.meeting.owners
    }  # fmt: skip
    outputs, small = _outputs(plan)
    return Part(
        plan_id(plan, index),
        segment.backend,
        index,
        segment.nodes,
        [t for t in there if t.role is not Role.WEIGHT],
        [t for t in made if t in crossing or t in small],
        [t for t in made if t in outputs and t not in small and t not in crossing],
        _states(plan, segment.backend),
        _fingerprint(plan),
    )


def side_of(plan: Plan, segment: int, side: tuple[int, Crossing] | None) -> Part:
    """All that the backend of a segment runs, as a program that meets the others': of values it
    takes inputs alone and gives small outputs alone."""
    backend = plan.segments[segment].backend
    nodes = [n for s in plan.segments if s.backend == backend for n in s.nodes]
    read = dict.fromkeys(s.owner for n in nodes for s in n.live_srcs())
    made = dict.fromkeys(n.owner for n in nodes if n.owner.role is Role.NODE)
    outputs, small = _outputs(plan)
    return Part(
        plan_id(plan, segment, side),
        backend,
        segment,
        nodes,
        [t for t in read if t.role is Role.INPUT],
        [t for t in made if t in small],
        [t for t in made if t in outputs and t not in small],
        _states(plan, backend),
        _fingerprint(plan),
    )


def _outputs(plan: Plan) -> tuple[set[Tensor], set[Tensor]]:
    """All, and those that the host reaches anyway."""
    outputs = {t.owner for t in plan.graph.outputs}
    return outputs, {t for t in outputs if t.nbytes <= SHARED_OUTPUT_BYTES}


def _states(plan: Plan, backend: str) -> list[Tensor]:
    """Those that a backend's nodes use."""
    found = {s.owner for n in plan.nodes if plan.placement.of[n] == backend
             for s in n.live_srcs() if s.owner.role is Role.STATE}  # fmt: skip
    return sorted(found, key=lambda t: t.name)


def _fingerprint(plan: Plan) -> str:
    """Equal for equal plans, whichever of the stages a process holds itself."""
    digest = sha256()
    for s in plan.segments:
        digest.update(b"--")
        for n in s.nodes:
            digest.update(f"{n.name} {n.op} {n.shape} {n.dtype.name}\n".encode())
    return digest.hexdigest()


def stage_devices(index: int, n: int, own: str) -> tuple[str, ...]:
    """`Options.devices` of the process that holds stage `index` of n, on its device `own`."""
    return tuple(own if k == index else str(DeviceId(KIND, k)) for k in range(n))
