"""Replicas: the simulation against what queueing theory says."""

from __future__ import annotations

import pytest

from gguflow.engine.scaling.replicas import Service, arrivals, run_replicas


def one_place(seconds: float) -> Service:
    """Requests of one token, one after the other."""
    return Service(lambda n: 1.0, seconds, 1, 1)


@pytest.mark.parametrize("load", (0.3, 0.6, 0.8))
def test_waits_of_one_queue(load: float) -> None:
    """M/D/1: random arrivals, one fixed time each: load / (2 (1 - load)) services of waiting."""
    served = run_replicas(1, one_place(1.0), arrivals(60_000, load, 5))
    waited = sum(served.first) / len(served.first) - 1
    assert waited == pytest.approx(load / (2 * (1 - load)), rel=0.1)
    assert served.busy == pytest.approx(load, rel=0.03)
    assert served.tokens == pytest.approx(load, rel=0.03)


@pytest.mark.parametrize("places", (1, 4, 16))
def test_capacity(places: int) -> None:
    """All requests are there from the beginning: as many tokens as the closed formula says."""
    service = Service(lambda n: 1 + 0.1 * n, 3.0, 32, places)
    served = run_replicas(2, service, [0.0] * 2 * 60 * places)
    assert served.tokens == pytest.approx(2 * service.capacity(), rel=0.04)
    assert served.busy == pytest.approx(1.0)


def test_more_replicas() -> None:
    times = arrivals(4000, 3.2, 1)
    by = [run_replicas(n, one_place(1.0), times) for n in (2, 4, 8, 64)]
    waits = [s.first_at(0.95) for s in by]
    assert waits == sorted(waits, reverse=True) and waits[0] > 100 and waits[-1] == 1.0
    # Too few: they are always busy, and as fast as they can be.
    assert by[0].tokens == pytest.approx(2.0, rel=0.01)
    assert by[1].tokens == pytest.approx(3.2, rel=0.05)


def test_nobody_is_lost_and_runs_are_equal() -> None:
    service = Service(lambda n: 0.1, 0.2, 5, 3)
    one, other = (run_replicas(3, service, arrivals(100, 4.0, 7)) for _ in range(2))
    assert one == other and len(one.first) == 100
    assert min(one.first) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="a replica and a request"):
        run_replicas(0, service, [0.0])
