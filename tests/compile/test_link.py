"""Schedules: programs that meet through flags, simulated under every kind of timing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gguflow.engine.ops  # noqa: F401  (registers them)
from gguflow.engine.compile import (
    Meeting,
    PlacementRules,
    Plan,
    PlanOptions,
    Recv,
    Send,
    Step,
    UnlinkableError,
    check_side_by_side,
    compile_graph,
    prune,
    reductions,
)
from gguflow.engine.graph import F32, I32, Graph, Role, Tensor


@dataclass(frozen=True)
class Info:
    name: str
    space: str
    memory: None = None
    links: None = None

    def supports(self, node: Tensor) -> bool:
        return True


@dataclass(frozen=True)
class Linked:
    """Programs by backend, and where they meet."""

    programs: dict[str, list[Step]]
    meetings: list[Meeting]


HOST, DEVICE, SECOND = Info("cpu", "host"), Info("gpu", "gpu:0"), Info("second", "gpu:1")


def planned(
    g: Graph,
    on_host: set[str],
    order: tuple[Info, ...] = (DEVICE, HOST),
    on_second: set[str] | None = None,
) -> Plan:
    overrides = [(rf"^{re.escape(name)}$", "cpu") for name in sorted(on_host)]
    overrides += [(rf"^{re.escape(name)}$", "second") for name in sorted(on_second or ())]
    return compile_graph(g, PlanOptions(PlacementRules(order, overrides), fuse=False))


def linked(plan: Plan) -> Linked:
    meetings = check_side_by_side(plan.steps, plan.placement, plan.spaces)
    return Linked({s.backend: plan.program(s.backend) for s in plan.segments}, meetings)


def random_plan(seed: int, n: int = 2) -> Plan:
    """A graph of additions and views whose nodes lie on one of n devices at random."""
    rng = np.random.default_rng(seed)
    g = Graph()
    made = [g.input("a", F32, (4,)), g.weight("w", F32, (4,)), g.input("b", F32, (4,))]
    on = [{t.name for t in made if rng.random() < 0.5}, set()]
    on[1] = {t.name for t in made if n > 2 and t.name not in on[0] and rng.random() < 0.5}
    stay = rng.choice([0.2, 0.5, 0.9])  # long segments and short ones
    here = 0
    for i in range(rng.integers(2, 60)):
        here = here if rng.random() < stay else int(rng.integers(n))
        recent = made[-6:] if rng.random() < 0.8 else made
        x, y = (recent[rng.integers(len(recent))] for _ in range(2))
        if rng.random() < 0.2:
            x = g.reshape(g.slice(x, 0, 0, 4), (4,))
        made.append(g.add(x, y, name=f"n{i}"))
        if here:
            on[here - 1].add(f"n{i}")
    g.output(made[-1])
    for t in made[3:-1]:
        if rng.random() < 0.3:
            g.output(t)
    return planned(g, on[0], (DEVICE, HOST, SECOND), on[1])


def simulate(plan: Plan, found: Linked, rng: np.random.Generator) -> None:
    """Run both programs step by step in random turns, and check every read, signal and wait."""
    present = {(t, b) for t in plan.graph.leaves.values() for b in found.programs}
    flags: set[int] = set()
    at = dict.fromkeys(found.programs, 0)
    used = {"set": [0] * len(found.meetings), "reset": [0] * len(found.meetings)}
    while running := [b for b, p in found.programs.items() if at[b] < len(p)]:
        able = []
        for b in running:
            step = found.programs[b][at[b]]
            if not (isinstance(step, Recv) and step.meeting.index not in flags):
                able.append(b)
        assert able, f"deadlock at {at}"
        b = able[rng.integers(len(able))]
        step = found.programs[b][at[b]]
        at[b] += 1
        if isinstance(step, Send):
            m = step.meeting
            assert b == m.source and m.index not in flags
            assert all((o, b) in present for o in m.owners)
            flags.add(m.index)
            used["set"][m.index] += 1
        elif isinstance(step, Recv):
            m = step.meeting
            assert b == m.target
            flags.remove(m.index)
            present |= {(o, b) for o in m.owners}
            used["reset"][m.index] += 1
        else:
            assert plan.placement.of[step] == b
            for s in step.live_srcs():
                assert (s.owner, b) in present, f"{step.name} reads {s.owner.name} too early"
            present.add((step.owner, b))
    assert not flags, "a flag is left for the next run"
    assert used == {k: [1] * len(found.meetings) for k in used}


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32 - 1), st.integers(2, 3))
def test_random_graphs_meet_without_deadlock(seed: int, n: int) -> None:
    plan = random_plan(seed, n)
    found = linked(plan)
    for turn in range(3):
        simulate(plan, found, np.random.default_rng([seed, turn]))


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32 - 1))
def test_programs_hold_every_node_once_in_order(seed: int) -> None:
    plan = random_plan(seed)
    if len({s.backend for s in plan.segments}) == 1:
        return
    found = linked(plan)
    for backend, program in found.programs.items():
        nodes = [s for s in program if isinstance(s, Tensor)]
        assert nodes == [n for n in plan.nodes if plan.placement.of[n] == backend]
    # Everything a segment would copy is an input or rides with exactly one meeting.
    copied = [
        (c.owner, c.target) for s in plan.segments for c in s.copies if c.owner.role is Role.NODE
    ]
    ridden = [(o, plan.spaces[m.target]) for m in found.meetings for o in m.owners]
    assert sorted((o.name, t) for o, t in copied) == sorted((o.name, t) for o, t in ridden)
    at = {n: i for i, n in enumerate(plan.nodes)}
    for m in found.meetings:
        assert at[m.after] == max(at[o] for o in m.owners) < at[m.before]


# -- the hybrid layer -----------------------------------------------------------------------------


def layers(n: int) -> tuple[Graph, set[str]]:
    """`n` layers as a split feed-forward block makes them: two values go over, one comes back."""
    g = Graph()
    x = g.input("x", F32, (4,))
    cold = set()
    for i in range(n):
        with g.scope(f"blk.{i}"):
            h = g.silu(x, name="h")
            idx = g.relu(h, name="idx")
            hot = g.mul(h, idx, name="hot")
            here = g.mul(h, idx, name="cold")
            x = g.add(g.add(hot, here, name="merge"), x, name="out")
        cold.add(here.name)
    g.output(x)
    return g, cold


def test_a_split_layer_meets_twice() -> None:
    plan = planned(*layers(5))
    found = linked(plan)
    assert len(found.meetings) == 2 * 5
    shown = {
        b: [s.name if isinstance(s, Tensor) else type(s).__name__ for s in p]
        for b, p in found.programs.items()
    }
    assert shown["gpu"][:7] == [
        "blk.0.h", "blk.0.idx", "Send", "blk.0.hot", "Recv", "blk.0.merge", "blk.0.out"
    ]  # fmt: skip
    assert shown["cpu"] == ["Recv", "blk.0.cold", "Send"] + [
        s for i in range(1, 5) for s in ("Recv", f"blk.{i}.cold", "Send")
    ]
    down = found.meetings[0]
    assert [o.name for o in down.owners] == ["blk.0.idx", "blk.0.h"]
    assert (down.source, down.target, down.flops) == ("gpu", "cpu", 20)


def test_a_value_rides_with_an_earlier_meeting_that_is_late_enough() -> None:
    g = Graph()
    x = g.input("x", F32, (4,))
    early, late = g.silu(x, name="early"), g.relu(x, name="late")
    first = g.neg(late, name="first")
    second = g.add(first, early, name="second")
    g.output(g.add(second, x, name="end"))
    found = linked(planned(g, {"first", "second"}))
    down = [m for m in found.meetings if m.target == "cpu"]
    assert [[o.name for o in m.owners] for m in down] == [["late", "early"]]


def test_a_value_made_later_does_not_hold_an_earlier_one_up() -> None:
    g = Graph()
    x = g.input("x", F32, (4,))
    soon = g.silu(x, name="soon")
    slow = g.relu(x, name="slow")
    first = g.neg(soon, name="first")
    g.output(g.add(g.add(first, slow, name="second"), x, name="end"))
    found = linked(planned(g, {"first", "second"}))
    down = [m for m in found.meetings if m.target == "cpu"]
    assert [(m.after.name, m.before.name) for m in down] == [("soon", "first"), ("slow", "second")]


def test_inputs_need_no_meeting() -> None:
    g = Graph()
    x = g.input("x", F32, (4,))
    there = g.neg(x, name="there")
    g.output(g.add(g.exp(x, name="here"), there, name="sum"))
    found = linked(planned(g, {"there"}))
    assert [(m.source, m.target) for m in found.meetings] == [("cpu", "gpu")]
    assert [o.name for m in found.meetings for o in m.owners] == ["there"]


# -- what linking does not do ---------------------------------------------------------------------


def parts(order: list[str], between: bool = False) -> Plan:
    """Two devices that exchange the sum of what they made."""
    g = Graph()
    x = g.input("x", F32, (4,))
    a, b = g.neg(x, name="a@0"), g.neg(x, name="a@1")
    for name in order:
        made = g.op("all_reduce", a, b, name=name)
        g.output(g.neg(made, name=f"out{name[3:]}") if between else made)
    second = {"a@1", "sum@1", "sum.again@1"}
    return planned(g, set(), (DEVICE, SECOND), second)


def test_sums_of_parts_are_exchanged_without_copies() -> None:
    plan = parts(["sum@0", "sum@1"])
    (group,) = reductions(plan.steps, plan.placement)
    assert [t.name for t in group] == ["sum@0", "sum@1"]
    assert not check_side_by_side(plan.steps, plan.placement, plan.spaces)
    assert [c.owner.name for s in plan.segments for c in s.copies] == ["x"]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (lambda: parts(["sum@0"]), "sum@0 is made on gpu, second and wanted on gpu"),
        (lambda: parts(["sum@0", "sum.again@0", "sum@1"]), "sum@0 is made on gpu, second and want"),
        (lambda: parts(["sum@0", "sum@1"], between=True), "sum@0 is made on gpu, second and want"),
    ],
)
def test_exchanges_that_could_wait_for_each_other(plan: Callable[[], Plan], message: str) -> None:
    found = plan()
    with pytest.raises(UnlinkableError, match=message):
        reductions(found.steps, found.placement)


def test_what_is_exchanged_is_wanted_by_all() -> None:
    g = Graph()
    x = g.input("x", F32, (4,))
    a, b = g.neg(x), g.neg(x)
    first, second = (g.op("all_reduce", a, b, name=f"sum@{k}") for k in range(2))
    unused, out = g.neg(second), g.neg(first)
    assert unused in g.nodes and prune(g.nodes, [out]) == [a, b, first, second, out]


def test_backends_of_one_space_are_not_linked() -> None:
    with pytest.raises(UnlinkableError, match="cpu and gpu share one memory space"):
        linked(planned(*layers(2), order=(Info("gpu", "host"), HOST)))


def test_a_state_read_from_another_device_is_not_linked() -> None:
    g = Graph()
    state, x = g.state("kv", F32, (8, 4)), g.input("x", F32, (1, 4))
    ids = g.input("ids", I32, (1,))
    g.output(g.set_rows(state, x, ids, name="write"))
    g.output(g.neg(state, name="read"))
    with pytest.raises(UnlinkableError, match="kv is a state read from another device"):
        linked(planned(g, {"read"}))
