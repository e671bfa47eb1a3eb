"""Allocations refused while a server answers: errors, no wrong text, nobody who waits in vain."""

from __future__ import annotations

import ast
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("starlette", "uvicorn", "httptools", "llguidance", "prometheus_client", "pydantic"):
    pytest.importorskip(package, reason=f"{package} is missing: pip install 'gguflow[serve]'")

SCRIPT = Path(__file__).with_name("fault_serve.py")
pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not shutil.which("cc"),
    reason="the shim is C for glibc",
)


def served(*words: str) -> dict[str, int]:
    """In processes of their own. How many requests ended in which way."""
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True,
                          timeout=1800)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = ast.literal_eval(done.stdout)
    return found


def test_a_few_refusals() -> None:
    found = served("--most", "8")
    assert found["refused"] >= 4 and found.get("error", 0) > 0 and found["text"] > 0


@pytest.mark.slow
def test_many_refusals() -> None:
    found = served()
    assert found["refused"] >= 200 and found["error"] > 0 and found["text"] > 0


@pytest.mark.slow
def test_refusals_of_small_allocations() -> None:
    """Which are in turn those of the interpreter, the server and its protocol."""
    found = served("--least", "600")
    assert found["refused"] >= 200 and found["error"] > 0 and found["text"] > 0
