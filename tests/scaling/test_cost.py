"""Seconds of work: limits in which the answer is known, and what must rise with what."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from gguflow.engine.graph import op_spec
from gguflow.engine.load.random import random_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.plan_key import PlanKey
from gguflow.engine.scaling import PRESETS, Question, forecast
from gguflow.engine.scaling.cost import ONE_SHOT, exchange_seconds, layer_seconds
from gguflow.engine.scaling.plans import Plans
from gguflow.engine.scaling.work import RunWork
from gguflow.kernels.cuda.all_reduce import SMALL

H200 = PRESETS["h200"]
# Only bytes take time.
READS = replace(H200, f32_tflops=1e9, f16_tflops=1e9, quant_tflops=1e9, unpack_ps=0.0,
                kernel_us=0.0, many_us=0.0, small_us=0.0, exchange=(), apart_us=0.0, hop_us=0.0,
                link_gbs=float("inf"))  # fmt: skip
SHAPE = "tinyllama-1.1b:F16"  # 4 heads of keys


def test_sums_change_their_form_where_the_kernels_do() -> None:
    assert ONE_SHOT == SMALL


@cache
def one_row(n: int, shape: str) -> RunWork:
    """Of a token, by so many cards: planned once for every machine."""
    return Plans(random_model(shape), n, 256, 1).decode(1, 64)


def seconds(n: int, m=READS, shape: str = SHAPE) -> float:
    return sum(layer_seconds(one_row(n, shape), m))


def test_one_card_is_the_plans_roofline() -> None:
    """No more and no less than the bytes of the plan's nodes."""
    device = ("null:0",)
    options = Options(n_ctx=256, backends=device, devices=device)
    plan = Model(random_model(SHAPE), options).plan(PlanKey(1, 0, 1, 1, True))
    read = sum(op_spec(n.op).cost_at(n, 64)[0] for n in plan.nodes if n.op)
    assert seconds(1) == pytest.approx(read / 4300e9)


@pytest.mark.parametrize("n", (2, 4))
def test_exchanges_that_cost_nothing_give_n_times(n: int) -> None:
    """But for norms and the looked-up row, which every card reads: a thousandth."""
    assert seconds(1) / seconds(n) == pytest.approx(n, rel=0.005)


def test_every_constant_costs() -> None:
    base = seconds(2, H200)
    for slower in (
        {"read_gbs": 1000.0}, {"f16_tflops": 1.0}, {"kernel_us": 9.0}, {"small_us": 9.0},
        {"exchange": ((16384.0, 20.0),)}, {"apart_us": 9.0}, {"hop_us": 99.0},
    ):  # fmt: skip
        assert seconds(2, replace(H200, **slower)) > base
    many = Plans(random_model(SHAPE), 2, 256, 256).decode(256, 64)
    for slower in ({"many_us": 99.0}, {"link_gbs": 1.0}):
        slow = sum(layer_seconds(many, replace(H200, **slower)))
        assert slow > sum(layer_seconds(many, H200))
    assert seconds(2, replace(H200, many_us=99.0)) == seconds(2, H200)  # of one row
    unpacked = replace(H200, unpack_ps=9.0)
    q = Plans(random_model("tinyllama-1.1b:Q4_0"), 1, 256, 8)
    assert sum(layer_seconds(q.decode(8, 64), unpacked)) > sum(layer_seconds(q.decode(8, 64), H200))
    one = q.decode(1, 64)  # a single row is multiplied as it is read
    assert sum(layer_seconds(one, unpacked)) == sum(layer_seconds(one, H200))


def test_exchanges_are_the_measured_ones_and_rise() -> None:
    assert exchange_seconds(16384, 2, H200) == pytest.approx(2.32e-6)
    assert exchange_seconds(262144, 2, H200) == pytest.approx(3.79e-6)
    assert exchange_seconds(1 << 20, 1, H200) == 0.0
    for n in (2, 3, 4, 8):
        sizes = [1 << k for k in range(8, 26)] + [ONE_SHOT // (n - 1) + d for d in (-1, 0, 1)]
        times = [exchange_seconds(b, n, H200) for b in sorted(sizes)]
        assert all(b >= a for a, b in pairwise(times))
    for nbytes in (16384, 1 << 20, 1 << 24):
        times = [exchange_seconds(nbytes, n, H200) for n in (2, 3, 4, 8)]
        assert all(b > a for a, b in pairwise(times))
    # In the end the rate between the last two points is all there is.
    assert exchange_seconds(1 << 32, 2, H200) == pytest.approx((1 << 32) / 348e9, rel=0.01)


def test_logits_cross_where_the_vocabulary_is_cut() -> None:
    """One device writes its half where the other one has the whole, which waits for it."""
    run = Plans(random_model(SHAPE), 2, 256, 64).decode(64, 64)
    assert [w.crossed for w in run.layers[-1]] == [[0], []]
    assert [w.written for w in run.layers[-1]] == [0, 4 * 64 * 16000]
    before, slow = sum(layer_seconds(run, H200)), replace(H200, link_gbs=1.0)
    assert sum(layer_seconds(run, slow)) > before + 0.8 * 4 * 64 * 16000 / 1e9


def test_two_sums_a_layer() -> None:
    run = Plans(random_model(SHAPE), 2, 256, 1).decode(1, 64)
    for layer in run.layers[1:-1]:
        assert [dict(w.exchanges) for w in layer] == [{4 * 2048: 2}] * 2


def test_heads_that_do_not_divide_are_named() -> None:
    _, notes = forecast(random_model(SHAPE), H200, Question(cards=(8,), n_prompt=0))
    assert any("whole on every device" in n and "attn_k (4 pieces)" in n for n in notes)


def test_depth_and_sequences_cost() -> None:
    plans = Plans(random_model(SHAPE), 1, 2048, 8)

    def took(n: int, depth: int) -> float:
        return sum(layer_seconds(plans.decode(n, depth), H200))

    assert took(1, 64) < took(1, 512) < took(1, 1536)
    assert took(1, 64) < took(2, 64) < took(8, 64) < 8 * took(1, 64)


@pytest.mark.parametrize(
    ("shape", "cards", "n", "measured"),
    [("llama3-8b:Q4_K_M", 1, 1, 546), ("llama3-8b:F16", 1, 16, 3434),
     ("llama3-8b:F16", 2, 64, 18725), ("llama3-70b-10l:Q4_0", 2, 1, 993.5),
     *(pytest.param(*x, marks=pytest.mark.slow) for x in (
        ("llama3-8b:Q8_0", 1, 1, 416), ("llama3-8b:F16", 2, 128, 28545),
        ("llama3-70b:Q4_0", 2, 128, 4929), ("llama3-70b-10l:F16", 2, 1, 381.7),
     ))],
)  # fmt: skip
def test_the_check_beside_measurements_holds(
    shape: str, cards: int, n: int, measured: float
) -> None:
    """Of docs/scaling.md, on one card and two: most of them no constant was fitted to."""
    q = Question(cards=(cards,), sequences=(n,), n_prompt=0, n_depth=192 if n > 1 else 64)
    ((row,), _) = forecast(random_model(shape), H200, q)
    assert row.speed == pytest.approx(measured, rel=0.1)
