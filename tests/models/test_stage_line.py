"""Calls to another process of this machine over a socket."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

from gguflow.engine.cluster import line as line_module
from gguflow.engine.cluster.errors import ClusterError
from gguflow.engine.cluster.line import Address, Line, listen

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such sockets")


def answer(name: str, args: tuple[Any, ...]) -> Any:
    if name == "refuse":
        raise ClusterError("another plan")
    if name == "fail":
        raise MemoryError("no more")
    if name == "sleep":
        time.sleep(args[0])
    return name, args


@pytest.fixture
def address() -> Iterator[Address]:
    found = listen(answer)
    assert found is not None
    yield found


def line_to(address: Address | None) -> Line:
    line = Line.to(address, "stage 1")
    assert line is not None
    return line


def test_answers_have_all_that_was_sent(address: Address) -> None:
    line = line_to(address)
    rng = np.random.default_rng(1)
    for n in (0, 1, 300, 3_000_000, 40_000, 5, 4_000_000):
        x = rng.standard_normal((n, 2)).astype(np.float32)
        name, (found, text) = line.ask(10.0, "run", x, {"a": [1, None]})
        assert name == "run" and text == {"a": [1, None]}
        assert found.shape == x.shape and found.tobytes() == x.tobytes()


def test_without_memory_that_both_see(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*args: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(line_module, "_reserve", no_room)
    x = np.arange(100_000)
    assert np.array_equal(line_to(address).ask(10.0, "run", x)[1][0], x)


def test_no_file_is_left(address: Address) -> None:
    def files() -> set[str]:
        return {f for f in os.listdir("/dev/shm") if f.startswith("tmp")}

    if not os.path.isdir("/dev/shm"):
        pytest.skip("there is no memory as files")
    before = files()
    line = line_to(address)
    for n in (100_000, 200_000, 400_000):
        line.ask(10.0, "run", np.zeros(n))
    assert not files() - before


def test_what_goes_wrong_there_is_told(address: Address) -> None:
    line = line_to(address)
    with pytest.raises(ClusterError, match=r"^another plan$"):
        line.ask(10.0, "refuse")
    with pytest.raises(ClusterError, match=r"^stage 1: no more$"):
        line.ask(10.0, "fail")
    assert line.ask(10.0, "run") == ("run", ())


@pytest.mark.parametrize("n", [1, 64])
def test_awake_or_asleep(address: Address, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Where there are processors to spare both ends look without sleeping, for a while."""
    monkeypatch.setattr(line_module, "cores", lambda: n)
    line, looks = line_to(address), []
    poll = line._end._arrivals.poll

    class Looks:
        def poll(self, timeout: float | None) -> Any:
            looks.append(timeout)
            return poll(timeout)

    line._end._arrivals = Looks()  # type: ignore[assignment]
    for pause in (0.0, 2 * line_module.AWAKE_S, 0.0):
        time.sleep(pause)
        assert line.ask(10.0, "sleep", pause) == ("sleep", (pause,))
    assert (0 in looks) == (n > 1) and 10_000 in looks
    with pytest.raises(ClusterError, match=r"gave no answer for 0\.1 s"):
        line.ask(0.1, "sleep", 2.0)


def test_an_answer_that_does_not_come(address: Address) -> None:
    with pytest.raises(ClusterError, match=r"gave no answer for 0\.1 s"):
        line_to(address).ask(0.1, "sleep", 2.0)


def test_only_who_has_the_key_is_heard(address: Address) -> None:
    assert Line.to(address._replace(key=b"another"), "stage 1") is None
    assert Line.to(address._replace(path=address.path + "x"), "stage 1") is None
    assert Line.to(None, "stage 1") is None


def test_nobody_else_may_enter(address: Address) -> None:
    assert os.stat(os.path.dirname(address.path)).st_mode & 0o077 == 0


def test_what_is_left_goes_with_the_caller(address: Address) -> None:
    line = line_to(address)
    line.ask(10.0, "run")
    line._connection.close()
    until = time.monotonic() + 10
    while os.path.exists(os.path.dirname(address.path)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not os.path.exists(os.path.dirname(address.path))


def _serve(pipe: Any) -> None:
    pipe.send(listen(answer))
    time.sleep(60)


def test_a_process_that_dies_is_lost() -> None:
    here, there = (context := get_context("spawn")).Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    line = line_to(here.recv())
    assert line.ask(10.0, "run") == ("run", ())
    assert process.pid is not None
    killer = threading.Timer(0.2, os.kill, (process.pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(ClusterError, match="stage 1 is lost"):
        line.ask(30.0, "sleep", 20.0)
    with pytest.raises(ClusterError, match="stage 1 is lost"):
        line.ask(30.0, "run")
    process.join()
