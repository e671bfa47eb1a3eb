"""Every script of bench/ says what it takes, and runs nothing for it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "bench"
SCRIPTS = [p.name for p in sorted(FOLDER.glob("*.py")) if "__main__" in p.read_text()]
Done = subprocess.CompletedProcess[str]


def asked(name: str) -> Done:
    command = [sys.executable, str(FOLDER / name), "--help"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def answers() -> dict[str, Future[Done]]:
    """Side by side: what takes time is what each imports."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return {name: pool.submit(asked, name) for name in SCRIPTS}


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_has_help(answers: dict[str, Future[Done]], name: str) -> None:
    done = answers[name].result()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {name} [-h]")
