"""Ctrl-C in the middle of a run of native code."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest

from gguflow.engine import interrupt
from gguflow.engine.model import Model
from gguflow.engine.sampling import GREEDY

PROMPT = [1, *(5 + i * i % 900 for i in range(1000))]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(n_threads=1, n_ubatch=1024)


@pytest.fixture(autouse=True)
def default_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def seconds_to_stop(model: Model, by_command: bool) -> tuple[float, float]:
    """What a prompt takes, and how long after Ctrl-C in its middle it was left. by_command: it is
    heeded as in a command, and not for a program that calls the library."""
    session = model.new_session()
    expected = list(session.generate(PROMPT, 4, GREEDY))  # plans are made
    session = model.new_session()
    next(session.generate(PROMPT, 1, GREEDY))
    session.rewind(0)
    began = time.perf_counter()
    next(session.generate(PROMPT[::-1], 1, GREEDY))
    whole = time.perf_counter() - began
    sent = [0.0]
    over = threading.Event()

    def send() -> None:
        if not over.wait(whole / 4):
            sent[0] = time.perf_counter()
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    try:
        with interrupt.heeded() if by_command else nullcontext():
            thread.start()
            next(session.generate(PROMPT, 1, GREEDY))
            over.set()
            thread.join()
        pytest.fail("it was over before it could be interrupted")
    except KeyboardInterrupt:
        stopped = time.perf_counter() - sent[0]
    thread.join()
    # The same session goes on as if nothing had been.
    assert list(session.generate(PROMPT, 4, GREEDY)) == expected
    return whole, stopped


@pytest.mark.parametrize("by_command", [True, False])
def test_a_long_prompt_is_left_at_once(model: Model, by_command: bool) -> None:
    whole, stopped = min(seconds_to_stop(model, by_command) for _ in range(3))
    assert stopped < max(0.3, whole / 4)
    assert stopped < whole / 2


def test_one_that_comes_between_runs_ends_none(model: Model) -> None:
    logits = model.logits(PROMPT[:50])
    with interrupt.heeded():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        for _ in range(20):
            np.testing.assert_array_equal(model.logits(PROMPT[:50]), logits)


def test_other_threads_leave_signals_alone(model: Model) -> None:
    found = []

    def work() -> None:
        with interrupt.heeded():
            found.append(len(model.new_session().logits(PROMPT[:10])))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [10]


def test_what_was_there_before_is_there_again() -> None:
    before = signal.set_wakeup_fd(-1)
    try:
        with interrupt.heeded():
            pass
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.set_wakeup_fd(before)


def test_a_programs_own_signals_are_its_own(model: Model) -> None:
    """A handler that raises nothing ends nothing, and an event loop goes on being told."""
    came = []
    signal.signal(signal.SIGINT, lambda *_: came.append(1))
    threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
    logits = model.logits(PROMPT)
    time.sleep(0.05)
    assert came and np.isfinite(logits).all()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    before = signal.set_wakeup_fd(ours.fileno())
    try:
        model.logits(PROMPT[:20])
        assert signal.set_wakeup_fd(before) == ours.fileno()
    finally:
        signal.set_wakeup_fd(before)
        ours.close()
        theirs.close()
