"""The native thread pool, where the system does not give the threads it is asked for."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import resource
from gguflow.engine.backends.cpu.backend import CpuBackend
from gguflow.engine.backends.cpu.native import CpuLibraryError

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))  # room for a few stacks
try:
    CpuBackend(n_threads=500).pool()
except CpuLibraryError as e:
    print(e)
"""


def test_too_few_threads_are_an_error() -> None:
    if not sys.platform.startswith("linux"):
        return
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "cannot start 500 threads"), done.stderr
