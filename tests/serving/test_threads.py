"""Threads that do not come to run are an error, and pools do what they are given."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest

from gguflow.cli.errors import NO_RESOURCES, exit_code
from gguflow.engine import threads
from gguflow.engine.pool import Pool
from gguflow.engine.threads import Thread


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What new threads would run, while the system gives them no memory to run it."""
    kept: list[Any] = []

    def begin(function: Any, *args: Any, **named: Any) -> int:
        kept.append(function)
        return 1

    monkeypatch.setattr(threads, "PATIENCE", 0.05)
    for name in ("_start_new_thread", "_start_joinable_thread"):  # of different versions
        if hasattr(threading, name):
            monkeypatch.setattr(threading, name, begin)
    return kept


def test_a_thread_that_gets_no_memory(refused: list[Any]) -> None:
    ran: list[int] = []
    thread = Thread(target=ran.append, args=(1,))
    with pytest.raises(RuntimeError, match="can't start new thread") as error:
        thread.start()
    assert exit_code(error.value) == NO_RESOURCES
    assert not thread.is_alive()
    thread.run()  # one that does come, when nobody counts on it
    assert not ran


def test_a_pool_without_threads(refused: list[Any]) -> None:
    with Pool(3) as pool, pytest.raises(RuntimeError, match="can't start new thread"):
        pool.submit(print)
    with Pool(3) as pool, pytest.raises(RuntimeError, match="can't start new thread"):
        list(pool.map(print, range(5)))


def test_a_pool_with_fewer_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, start, left = Pool(4), Thread.start, [2]

    def some(self: Thread) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(Thread, "start", some)
    with pool:
        assert list(pool.map(abs, range(-50, 0))) == [*range(50, 0, -1)]
        assert len(pool._threads) == 2


def test_a_pool_does_what_it_is_given() -> None:
    met = threading.Barrier(3, timeout=20)
    with Pool(3) as pool:
        names = set(pool.map(lambda _: (met.wait(), threading.get_ident())[1], range(3)))
        assert len(names) == 3
        failed = pool.submit(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            failed.result()
        assert pool.submit(divmod, 7, 2).result() == (3, 1)
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(print)
    assert not any(t.is_alive() for t in pool._threads)


def test_jobs_that_nobody_wants_are_left() -> None:
    pool, began, goes_on = Pool(1), threading.Event(), threading.Event()
    first = pool.submit(lambda: (began.set(), goes_on.wait(20)))
    others = [pool.submit(print) for _ in range(3)]
    assert began.wait(20)
    pool.shutdown(wait=False, cancel_futures=True)
    assert all(f.cancelled() for f in others) and not first.done()
    goes_on.set()
    assert first.result(20)


def test_a_full_pool_starts_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pool(3) as pool:
        pool.fill()
        monkeypatch.setattr(Thread, "start", None)
        barrier = threading.Barrier(3, timeout=20)
        assert sorted(pool.map(lambda _: barrier.wait(), range(3))) == [0, 1, 2]


def test_a_pool_is_filled_as_far_as_there_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Thread] = []
    begin = Thread.start

    def start(thread: Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        begin(thread)

    monkeypatch.setattr(Thread, "start", start)
    with Pool(4) as pool:
        pool.fill()
        assert [*pool.map(int, "123")] == [1, 2, 3] and len(started) == 2
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Pool(4).fill()


def test_threads_end_with_their_pool() -> None:
    pool = Pool(2)
    pool.submit(int).result()
    (thread,) = map(weakref.ref, pool._threads)
    del pool
    gc.collect()
    until = time.monotonic() + 20
    while (t := thread()) is not None and t.is_alive() and time.monotonic() < until:
        del t
        time.sleep(0.01)
    assert (t := thread()) is None or not t.is_alive()


def test_an_interrupt_as_a_thread_starts_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C may come when a thread of a pool runs already and is on no list yet."""
    started: list[Thread] = []
    begin = Thread.start

    def start(thread: Thread) -> None:
        begin(thread)
        started.append(thread)
        if len(started) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Thread, "start", start)
    pool = Pool(3)
    assert pool.submit(int, "1").result() == 1
    with pytest.raises(KeyboardInterrupt):
        pool.submit(int, "2")
    pool.shutdown(wait=False)
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()
    pool.shutdown(cancel_futures=True)
