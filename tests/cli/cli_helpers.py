"""What tests of the command line share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ENV = {k: v for k, v in os.environ.items() if not k.startswith("GGUFLOW_")}


def start(*args: str, **options: object) -> subprocess.Popen[str]:
    """`gguflow ARGS` as a process with pipes for its output."""

    def default_sigint() -> None:
        # A test run in the background of a shell inherits an ignored SIGINT.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return subprocess.Popen(
        [sys.executable, "-m", "gguflow", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, encoding="utf-8", env=ENV, preexec_fn=default_sigint, **options,
    )  # fmt: skip


def one_line_error(err: str) -> str:
    """The message of standard error, which must be an error and nothing else."""
    lines = err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("gguflow: error: "), err
    assert "Traceback" not in err
    return lines[0].removeprefix("gguflow: error: ")


def write_bytes(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)
