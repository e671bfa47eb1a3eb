"""Memory, threads and the disk refused at calls in turn: errors that are told, no partial file."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fault_sweep.py")
pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not shutil.which("cc"),
    reason="the shim is C for glibc",
)


def swept(*words: str) -> list[str]:
    """In a process of its own, into which the shim is preloaded. A line a job and kind of fault."""
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True,
                          timeout=1800)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_few_faults() -> None:
    lines = swept("--most", "2")
    told = [line.split(":")[:2] for line in lines if "'told'" in line]
    for job in ("quantize", "convert", "session", "cache"):
        assert [job, " full disk"] in told and [job, " bad disk"] in told
    # A generation of a small model allocates nothing large; its buffers are maps of their own.
    assert ["quantize", " memory"] in told and ["generate", " threads"] in told


@pytest.mark.slow
def test_every_fault() -> None:
    assert len(swept()) > 20
