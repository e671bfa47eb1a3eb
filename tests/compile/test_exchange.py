"""Devices that run at the same time and exchange what they made: simulated ones."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from exchanges import (
    bound_to,
    check,
    check_sharing,
    exchanging,
    exchanging_plan,
    fill,
    sharing_plan,
)

from gguflow.engine.backends.null.backend import NullBackend
from gguflow.engine.backends.simulated import SimulatedBackend
from gguflow.engine.graph import F32
from gguflow.engine.runtime import LinkError, exchange
from gguflow.engine.runtime.exchange import SideBySide
from gguflow.kernels.cuda import all_reduce, all_reduce_norm


@pytest.mark.parametrize("n", [2, 3, 8])
def test_all_have_the_sum_of_all_parts(n: int) -> None:
    rng = np.random.default_rng(n)
    bound = exchanging([SimulatedBackend(k) for k in range(n)], [5, 1, 300])
    assert isinstance(bound.runner, SideBySide) and len(bound.runner.programs) == n
    for _ in range(4):
        check(bound, rng)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_rows_shared_out_have_the_bits_of_whole_sums(n: int) -> None:
    cases = [(9, 64, None), (8, 32, None), (20, 64, F32)]
    devices = [SimulatedBackend(k) for k in range(n)]
    bound = bound_to(devices, sharing_plan(devices, cases))
    rng = np.random.default_rng(n)
    for _ in range(3):
        check_sharing(bound, rng, cases, n)


@pytest.mark.parametrize("first_adds", [False, True])
def test_a_channel_has_room_for_as_many_as_there_are(first_adds: bool) -> None:
    """A residual is nobody's part. One of these sizes is small for two devices, not for three."""
    sizes = [100_000, 1, 4_000_000]
    devices = [NullBackend(k) for k in range(2)]
    plan = exchanging_plan(devices, sizes, lambda i: (i == 0) == first_adds)
    expected = all_reduce.channel_bytes(2, [4 * s for s in sizes])
    assert plan.channels == {d.space: expected for d in devices}


def test_devices_that_are_apart_exchange_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [SimulatedBackend(k) for k in range(2)]
    for d in devices:
        monkeypatch.setattr(
            d, "links", type(d.links)(d.links.alloc_pinned, channel_bytes=d.links.channel_bytes)
        )
    bound = exchanging(devices, [7])
    assert isinstance(bound.runner, SideBySide) and len(bound.runner.sides.apart) == 1
    check(bound, np.random.default_rng(1))


@pytest.mark.parametrize("late", [0, 1])
def test_a_device_that_does_not_come_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.2)
    bound = exchanging([SimulatedBackend(k) for k in range(2)], [4, 4])
    rng = np.random.default_rng(2)
    check(bound, rng)
    program: Any = bound.runner.programs[late]
    start = program.start

    def sleepy(timed: bool = False, live: Any = None) -> None:
        run = program._run

        def first(step: Any, live: Any) -> None:
            monkeypatch.setattr(program, "_run", run)
            time.sleep(1.5)
            run(step, live)

        monkeypatch.setattr(program, "_run", first)
        start(timed, live)

    monkeypatch.setattr(program, "start", sleepy)
    fill(bound, rng)
    with pytest.raises(LinkError, match=r"waited 0\.4\d* s for the others' parts of s\.0@0"):
        bound.run()
    monkeypatch.setattr(program, "start", start)
    check(bound, rng)


def test_a_device_that_fails_is_what_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.2)
    bound = exchanging([SimulatedBackend(k) for k in range(2)], [4])
    program: Any = bound.runner.programs[1]
    run = program._run

    def fail(step: Any, live: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(program, "_run", fail)
    with pytest.raises(MemoryError, match="no more"):
        bound.run()
    monkeypatch.setattr(program, "_run", run)
    check(bound, np.random.default_rng(3))


def test_a_profile_has_all_devices_rows_on_one_clock() -> None:
    bound = exchanging([SimulatedBackend(k) for k in range(3)], [64])
    fill(bound, np.random.default_rng(4))
    rows, spans = bound.run_timed()
    assert len(rows) == len(spans) == 9
    assert {r.backend for r in rows if r.op == "all_reduce"} == {f"simulated:{k}" for k in range(3)}
    assert (spans[:, 1] >= spans[:, 0]).all()


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("sizes", [[4], [16384, 4], [8 << 20], [8 << 20, 4096, 3 << 20]])
def test_rooms_of_a_channel_lie_apart(n: int, sizes: list[int]) -> None:
    """What the kernels of an exchange write, by the numbers that they are given."""
    end = all_reduce.channel_bytes(n, sizes)
    small, large, last = all_reduce._layout(n, sizes)
    spans = [(0, all_reduce.HEAD)]
    for at, rooms, is_small in ((small, n, True), (large, n + 1, False)):
        stride = all_reduce._stride(sizes, n, is_small)
        spans += [(at + i * stride, at + (i + 1) * stride) for i in range(2 * rooms) if stride]
        for s in sizes:
            if all_reduce._is_small(n, s) == is_small:
                assert stride >= (2 * s if is_small else s)
    _apart(spans, last)
    assert end == last


@pytest.mark.parametrize("n", [2, 3, 8])
def test_rooms_for_shared_rows_lie_behind_those_for_sums(n: int) -> None:
    sizes, shares = [16384, 4 << 20], [(300, 4096), (100, 32768)]
    at = all_reduce_norm._layout(n, sizes, shares)
    assert at.end == all_reduce_norm.channel_bytes(n, sizes, shares)
    whole = all_reduce_norm.whole_sizes(sizes, shares)
    assert max(whole) >= all_reduce_norm.ROWS * 32768  # of plans that have no more rows
    spans = [(0, all_reduce.channel_bytes(n, whole))]
    for begin, stride in ((at.sums, at.sums_stride), (at.norms, at.norms_stride)):
        spans += [(begin + i * stride, begin + (i + 1) * stride) for i in range(2 * n)]
    for rows, nbytes in shares:
        assert at.sums_stride >= rows * nbytes
        assert at.norms_stride >= rows * (nbytes + 16)
    _apart(spans, at.end)


def _apart(spans: list[tuple[int, int]], end: int) -> None:
    spans.sort()
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
    assert spans[-1][1] <= end
