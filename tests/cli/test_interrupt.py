"""Ctrl-C in the middle of a run: in a process of its own, which a signal may end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_interrupts() -> None:
    cases = Path(__file__).with_name("interrupt_cases.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", cases],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
