"""Windows lacks modules and functions that Linux has. A process of its own goes without them here:
everything must still be imported, a text generated and a file written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = r"""
import contextlib, ctypes, mmap, os, pkgutil, signal, sys, types
from importlib import import_module
from pathlib import Path


def load_all():
    "Names of this project's modules that can be imported; some need packages that are not here."
    import gguflow

    found = set()
    for module in pkgutil.walk_packages(gguflow.__path__, "gguflow.", lambda name: None):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                import_module(module.name)
                found.add(module.name)
    return found


def generate():
    from gguflow.cli.main import main

    code = main(["generate", "-p", "Once upon a time", "-n", "8", "--temp", "0"])
    sys.stdout.flush()
    return code


# Other packages are loaded as this system needs them, and stay.
expected = load_all()
assert generate() == 0
for name in [n for n in sys.modules if n.partition(".")[0] == "gguflow"]:
    del sys.modules[name]

for name in ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
missing = {
    mmap: "MADV_HUGEPAGE MAP_ANONYMOUS MAP_PRIVATE",
    os: "O_CLOEXEC O_NOFOLLOW O_NONBLOCK fchmod fork geteuid getloadavg getuid killpg"
    " posix_fallocate pread pwrite register_at_fork sched_getaffinity statvfs sysconf uname",
    signal: "SIGALRM SIGBUS SIGHUP SIGKILL SIGUSR1 pthread_kill pthread_sigmask",
}
for module, names in missing.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
kernel32 = types.SimpleNamespace(GetStdHandle=lambda number: 1, GetConsoleMode=lambda *args: 0)
ctypes.windll = types.SimpleNamespace(kernel32=kernel32)
sys.platform = "win32"

print("--")
assert generate() == 0
lost = expected - load_all()
assert not lost, lost
from gguflow.engine.files import whole_file

for text in ("one", "two"):
    with whole_file(sys.argv[1]) as part:
        part.write_text(text)
assert Path(sys.argv[1]).read_text() == "two"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="takes away what Linux has")
def test_windows_lacks_nothing_that_is_needed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path / "file")],
        capture_output=True, encoding="utf-8", timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, _, after = done.stdout.partition("--\n")
    assert before.startswith("Once upon a time") and after == before
