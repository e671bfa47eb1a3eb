"""Rows are what the clock reads and the plan say, and sum to the wall time."""

from __future__ import annotations

import time

import numpy as np
import pytest
from known_plan import HOST_US, NATIVE_US, PEAKS, clock_reads, plan

from gguflow.engine.graph import F32, Graph, OpSpec, opspec
from gguflow.engine.profile import PlanRow, Profile
from gguflow.engine.profile.group import (
    GROUPINGS,
    largest,
    layer_of,
    module_of,
    regroup,
    totals_by_name,
)


def test_rows_follow_one_another_and_sum_to_the_wall_time(make_profile):
    profile = make_profile(3)
    rows = list(profile.rows())
    for step in profile.steps:
        of_step = [r for r in rows if r.step == step.step]
        assert [r.name for r in of_step] == ["host", *(r.name for r in plan())]
        assert sum(r.us for r in of_step) == pytest.approx(step.wall_us)
        assert step.wall_us == NATIVE_US + HOST_US
        assert step.host_us == HOST_US
        assert of_step[0].start_us == pytest.approx(step.start_us)
        for before, after in zip(of_step, of_step[1:], strict=False):
            assert after.start_us == pytest.approx(before.start_us + before.us)


def test_rates_and_share_of_peak(make_profile):
    rows = {r.name: r for r in make_profile(1, n_prefill=0).rows()}
    q = rows["blk.1.attn.q"]  # 50 kB and 80 kFLOP in 10 us
    assert (q.us, q.gbs, q.gflops) == (10.0, 5.0, 8.0)
    assert q.share == 0.5  # bandwidth, 5 of 10 GB/s; int8 arithmetic is 8 of 400
    out = rows["output"]  # 400 kB and 1 MFLOP in 50 us
    assert out.share == 0.8  # 8 of 10 GB/s, and only 20 of 100 GFLOP/s in f32
    assert rows["host"].share is None


def test_cost_that_grows_with_the_position(make_profile):
    rows = [r for r in make_profile(2).rows() if r.name == "blk.0.attn.out"]
    assert [(r.phase, r.bytes, r.flops) for r in rows] == [
        ("prefill", 0, 0),
        ("decode", 3200, 6400),
        ("decode", 3300, 6600),
    ]


def test_only_some_steps(make_profile):
    assert {r.step for r in make_profile(5).rows({2, 4})} == {2, 4}


def test_the_clock_buffer_may_be_reused():
    profile = Profile()
    ends = clock_reads([7.0])
    profile.add_step("decode", 1, plan()[:1], ends, 9_000)
    ends[:] = 0
    assert [r.us for r in profile.rows()] == [2.0, 7.0]


def test_wrong_number_of_clock_reads():
    with pytest.raises(ValueError, match="5 clock reads for a plan of 13 ops"):
        Profile().add_step("decode", 1, plan(), np.zeros(5, np.int64), 1)


def test_clocks_that_disagree_never_give_negative_time():
    profile = Profile()
    profile.add_step("decode", 1, plan()[:1], clock_reads([10.0]), 9_999)
    assert [r.us for r in profile.rows()] == [0.0, 10.0]
    assert profile.steps[0].wall_us == 10.0


def test_an_op_shorter_than_a_clock_tick_has_no_rate():
    profile = Profile(peaks={"cpu": PEAKS})
    profile.add_step("decode", 1, plan()[:1], clock_reads([0.0]), 0)
    row = list(profile.rows())[1]
    assert (row.us, row.gbs, row.gflops, row.share) == (0.0, 0.0, 0.0, 0.0)


def test_steps_are_placed_in_real_time():
    profile = Profile()
    time.sleep(0.002)
    profile.add_step("decode", 1, plan()[:1], clock_reads([10.0]), 1_000_000)
    assert 1_000 <= profile.steps[0].start_us < 10_000_000


def test_adding_a_step_is_cheap():
    """A step of TinyLlama has some 264 ops and takes tens of milliseconds."""
    profile = Profile()
    rows = plan() * 21
    ends = clock_reads([1.0] * len(rows))
    start = time.thread_time()
    for _ in range(1000):
        profile.add_step("decode", 1, rows, ends, 1)
    assert (time.thread_time() - start) / 1000 < 100e-6


def test_row_of_a_graph_node(monkeypatch):
    # Other tests look at all ops there are.
    monkeypatch.setattr(opspec, "_REGISTRY", dict(opspec._REGISTRY))

    class _Spec(OpSpec):
        name = "profile_test_op"
        n_srcs = (1, 2)

        def infer(self, *srcs, **params):
            return srcs[0].dtype, srcs[0].shape

        def cost_at(self, out, n_past):
            return out.nbytes * n_past, n_past

    g = Graph()
    x = g.input("x", F32, (2, 8))
    with g.scope("blk.0"):
        y = g.profile_test_op(x, None, name="y")
    row = PlanRow.of(y, backend="cpu", segment=1, index=4)
    assert (row.name, row.op, row.segment, row.index) == ("blk.0.y", "profile_test_op", 1, 4)
    assert (row.shapes, row.types) == (((2, 8), (2, 8)), ("f32", "f32"))
    assert (row.bytes, row.flops) == (128, 16)
    assert row.cost is not None and row.cost(3) == (192, 3)
    with pytest.raises(ValueError, match="x: a input is no op"):
        PlanRow.of(x, backend="cpu")


@pytest.mark.parametrize(
    ("name", "module", "layer"),
    [
        ("blk.3.attn.q", "attn.q", "blk.3"),
        ("blk.12.ffn.swiglu.2", "ffn.swiglu.2", "blk.12"),
        ("enc.blk.0.attn.q", "enc.attn.q", "enc.blk.0"),
        ("output", "output", "output"),
        ("blk.3", "blk.3", "blk.3"),
        ("blk.x.attn", "blk.x.attn", "blk.x.attn"),
    ],
)
def test_places_in_the_model(name, module, layer):
    assert (module_of(name), layer_of(name)) == (module, layer)


def test_grouping(make_profile):
    totals = totals_by_name(make_profile(10, n_prefill=0))
    by = {n: {g.key: g for g in regroup(totals, key)} for n, key in GROUPINGS.items()}
    assert set(by["op"]) == {"mul_mat", "attention", "rms_norm", "host"}
    assert list(by["module"])[:2] == ["ffn.down", "output"]
    assert set(by["layer"]) == {"blk.0", "blk.1", "blk.2", "output", "host"}
    mul_mat = by["op"]["mul_mat"]
    assert (mul_mat.calls, mul_mat.us) == (70, 10 * (3 * 30 + 50))
    assert mul_mat.bytes == 10 * (3 * 150_000 + 400_000)
    # Ideal times: 5 and 10 us a layer by bandwidth, 40 us for the output.
    assert mul_mat.share == pytest.approx((3 * 15 + 40) / (3 * 30 + 50))
    assert by["layer"]["blk.1"].us == 10 * 35
    for groups in by.values():
        assert sum(g.us for g in groups.values()) == pytest.approx(10 * (NATIVE_US + HOST_US))


def test_the_rest_is_added_up(make_profile):
    groups = regroup(totals_by_name(make_profile(2, n_prefill=0)), GROUPINGS["module"])
    cut = largest(groups, 2)
    assert [g.key for g in cut] == ["ffn.down", "output", f"{len(groups) - 2} more"]
    assert sum(g.us for g in cut) == pytest.approx(sum(g.us for g in groups))
    assert sum(g.calls for g in cut) == sum(g.calls for g in groups)
