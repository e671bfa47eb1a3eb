"""Ctrl-C in the middle of a run: in a process of its own, which a signal may end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_interrupts() -> None:
    cases = Path(__file__).with_name("interrupt_cases.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", cases],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]


ENDS = {
    "a weak set": "people = WeakSet(); people.add(one := Thing()); last = one; del one",
    "a weak dictionary": "people = WeakValueDictionary(one=(one := Thing())); last = one; del one",
    "an object": "last = Dying()",
}


@pytest.mark.parametrize("where", ENDS)
def test_it_is_not_lost_where_an_object_ends(where: str) -> None:
    """What is raised there is dropped: the signal comes a moment later once more."""
    text = f"""
import signal, sys, time
from weakref import WeakSet, WeakValueDictionary
from gguflow import start

def told(frame, event, arg):
    code = frame.f_code
    if code.co_filename.endswith(("weakref.py", "_weakrefset.py")) and "remove" in code.co_name:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)

class Thing: pass
class Dying:
    def __del__(self): signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, start._interrupt)
{ENDS[where]}
sys.setprofile(told)
last = None
try:
    time.sleep(20)
except KeyboardInterrupt:
    sys.exit(130)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done.stderr
    assert "ignored" not in done.stderr
