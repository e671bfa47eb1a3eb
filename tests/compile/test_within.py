"""Parts that are made within what joins them: when, where, and that values stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from exchanges import bound_to

from gguflow.engine.backends.descriptors import DescriptorError, check_step
from gguflow.engine.backends.simulated import SimulatedBackend
from gguflow.engine.compile import PlacementRules, Plan, PlanOptions, Recv, compile_graph
from gguflow.engine.graph import F32, Graph, Tensor, is_in_place

ROWS, WIDTHS = 5, (7, 16, 3)


class Recorded:
    """Each device has the sum of what all give, a part of some columns made of it, and the first
    one all parts, joined along an axis; its negative is the output."""

    def __init__(self, n: int, exchanges: bool = True, axis: int = -1) -> None:
        g = self.g = Graph()
        self.n, self.axis = n, axis
        self.given = [g.input(f"x@{k}", F32, (ROWS, max(WIDTHS))) for k in range(n)]
        self.made = [g.neg(x, name=f"p@{k}") for k, x in enumerate(self.given)]
        self.sums = self.made
        if exchanges:
            self.sums = [g.op("all_reduce", *self.made, name=f"s@{k}") for k in range(n)]
        self.parts = [g.scale(self.cut(s, k), s=k + 1.0, name=f"y@{k}")
                      for k, s in enumerate(self.sums)]  # fmt: skip
        self.joined = self.parts[0]
        for y in self.parts[1:]:
            self.joined = g.concat(self.joined, y, axis=axis, name="joined@0_")
        self.out = g.output(g.neg(self.joined, name="out@0_"))

    def cut(self, s: Tensor, k: int) -> Tensor:
        n = WIDTHS[k] if self.axis == -1 else ROWS - k
        return self.g.slice(s, self.axis, 0, n)

    def plan(self) -> tuple[Plan, list[SimulatedBackend]]:
        devices = [SimulatedBackend(k) for k in range(self.n)]
        rules = [(rf"@{k}", d.name) for k, d in enumerate(devices)]
        options = PlanOptions(PlacementRules(devices, rules), fuse=False)
        return compile_graph(self.g, options), devices

    def check(self, plan: Plan, devices: list[SimulatedBackend]) -> None:
        bound, rng = bound_to(devices, plan), np.random.default_rng(3)
        for _ in range(5):
            total = np.zeros((ROWS, max(WIDTHS)), np.float32)
            for k in range(self.n):
                x = bound.inputs[f"x@{k}"]
                x[:] = rng.standard_normal(x.shape)
                total -= x
            if self.axis == -1:
                parts = [(k + 1) * total[:, : WIDTHS[k]] for k in range(self.n)]
            else:
                parts = [(k + 1) * total[: ROWS - k] for k in range(self.n)]
            bound.run()
            expected = -np.concatenate(parts, axis=self.axis)
            np.testing.assert_allclose(bound.outputs[0], expected, rtol=1e-6)


def written(plan: Plan) -> list[Tensor]:
    return [t for s in plan.steps if isinstance(s, Recv) for t in s.meeting.written]


def crossing(plan: Plan) -> set[str]:
    return {o.name for s in plan.steps if isinstance(s, Recv) for o in s.meeting.owners}


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("n", [2, 3])
def test_parts_of_all_devices(n: int, axis: int) -> None:
    r = Recorded(n, axis=axis)
    plan, devices = r.plan()
    assert written(plan) == r.parts[1:] and not crossing(plan)
    assert not any(s.copies for s in plan.segments if s.backend == devices[0].name)
    assert all(p.owner is r.joined and p.strides == r.joined.strides for p in r.parts)
    joins = [t for t in plan.nodes if t.op == "concat"]
    assert all(is_in_place(t, i) for t in joins for i in (0, 1))
    places = [{*plan.arenas[d.space].offsets} for d in devices]
    assert not {*r.parts, *joins[:-1]} & set().union(*places) and r.joined in places[0]
    r.check(plan, devices)


def test_memory_is_nobody_elses_from_the_exchange_on() -> None:
    """Not of the exchange's own part and sum either, and not of what comes before the join."""
    r = Recorded(2)
    g = r.g
    late = g.neg(r.sums[0], name="late@0_")  # over before the first device's part
    g.output(g.concat(late, late, axis=-2, name="kept@0_"))
    at = g.nodes.index(r.sums[1]) + 1
    g.nodes[at:at], g.nodes[-2:] = g.nodes[-2:], []
    plan, devices = r.plan()
    offsets = plan.arenas[devices[0].space].offsets
    begin, end = offsets[r.joined], offsets[r.joined] + r.joined.nbytes
    for t in (r.made[0], r.sums[0], late):
        assert offsets[t] >= end or offsets[t] + t.nbytes <= begin, t.name
    r.check(plan, devices)


def as_an_output(r: Recorded) -> None:
    r.g.output(r.parts[1])


def with_another_reader(r: Recorded) -> None:
    r.g.output(r.g.neg(r.parts[1], name="other@0_"))


def read_elsewhere(r: Recorded) -> None:
    r.g.output(r.g.neg(r.joined, name="other@1_"))


@pytest.mark.parametrize("change", [as_an_output, with_another_reader, read_elsewhere])
def test_values_that_others_read_cross(change: Callable[[Recorded], None]) -> None:
    r = Recorded(2)
    change(r)
    plan, devices = r.plan()
    assert written(plan) == [] and "y@1" in crossing(plan)
    assert all(p.owner is p for p in r.parts)
    r.check(plan, devices)


def test_without_an_exchange_before_them_they_cross() -> None:
    r = Recorded(2, exchanges=False)
    plan, _ = r.plan()
    assert written(plan) == [] and crossing(plan) == {"y@1"}
    r = Recorded(2, exchanges=False)
    late = [r.g.op("all_reduce", *r.made, name=f"late@{k}_") for k in range(2)]
    for t in late:
        r.g.output(t)
    plan, _ = r.plan()
    assert written(plan) == [] and crossing(plan) == {"y@1"}


def test_those_that_cannot_are_moved_beside_those_that_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    takes: Any = lambda self, node: node.name != "y@1"  # noqa: E731
    monkeypatch.setattr(SimulatedBackend, "supports_strides", takes)
    r = Recorded(3)
    plan, devices = r.plan()
    assert written(plan) == [r.parts[2]] and crossing(plan) == {"y@1"}
    inner, outer = (t for t in plan.nodes if t.op == "concat")
    assert [is_in_place(inner, i) for i in (0, 1)] == [True, False]
    assert [is_in_place(outer, i) for i in (0, 1)] == [True, True]
    r.check(plan, devices)


def test_one_device_alone_has_its_values_apart() -> None:
    g = Graph()
    x = g.input("x", F32, (3, 4))
    g.output(g.concat(g.neg(x), g.neg(x), axis=-1))
    rules = PlacementRules([SimulatedBackend(0)])
    plan = compile_graph(g, PlanOptions(rules, fuse=False))
    assert all(n.owner is n for n in plan.nodes)


def test_a_place_that_nobody_reads_is_refused() -> None:
    """Memory of a value that the op's result does not become part of."""
    r = Recorded(2)
    plan, devices = r.plan()
    memory = bound_to(devices, plan).memory
    for t in plan.nodes:
        if plan.placement.of[t] == devices[0].name:
            check_step(t, memory)
    r.parts[0].view_offset += 4
    with pytest.raises(DescriptorError, match="which it does not write into"):
        check_step(r.parts[0], memory)
    with pytest.raises(DescriptorError, match="shares memory"):
        check_step(r.joined, memory)
