"""Writers that are killed: nothing partial under a final name, nothing left in the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_moments.py")


def killed(n: int, seed: int) -> str:
    """In a process of its own, which has no threads when it forks."""
    done = subprocess.run([sys.executable, SCRIPT, "--kills", str(n), "--seed", str(seed)],
                          capture_output=True, text=True, timeout=900)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_few_kills() -> None:
    assert killed(25, 1).startswith("25 kills")


@pytest.mark.slow
def test_five_hundred_kills() -> None:
    assert killed(500, 2).startswith("500 kills")
