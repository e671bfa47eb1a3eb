"""--mlock: weights locked in memory, as far as the system allows."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import ENV
from tiny_model import write_tiny

from gguflow.engine import locked
from gguflow.engine.gguf.mapping import MappedFile
from gguflow.engine.model import Model
from gguflow.engine.options import OptionError, Options

resource = pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc how much is locked")
PR_CAPBSET_DROP, CAP_IPC_LOCK = 24, 14

# Prints how many KiB are locked: with the model loaded, and after it was closed.
PROGRAM = """
import gc, re, sys, gguflow
def locked():
    with open("/proc/self/status") as f:
        return re.search(r"VmLck:\\s+(\\d+)", f.read())[1]
model = gguflow.Model.load(sys.argv[1], n_threads=1, mlock=sys.argv[2] == "1", weight_cache=False)
n = sum(b.nbytes for b in model.weights.buffers.values())
print(locked(), n // 1024, *model.weights.notes, sep="|")
model.close()
del model
gc.collect()
print(locked())
"""


def limited(n_bytes: int) -> None:
    """In a child: no more may be locked, whoever runs it."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (n_bytes, n_bytes))
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0)  # fails where there is none


def run(*words: str, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=120, env=ENV,
        stdin=subprocess.DEVNULL, preexec_fn=None if limit is None else lambda: limited(limit),
    )  # fmt: skip


def allowed() -> int:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return 1 << 62 if limit == resource.RLIM_INFINITY else int(limit)


def test_weights_are_locked_and_let_go(tiny_model: str) -> None:
    size = Path(tiny_model).stat().st_size
    if allowed() < 2 * size:
        pytest.skip(f"RLIMIT_MEMLOCK is {allowed()} bytes here")
    done = run("-c", PROGRAM, tiny_model, "1")
    assert done.returncode == 0, done.stderr
    loaded, closed = done.stdout.splitlines()
    now, weights = map(int, loaded.split("|"))  # and no note
    assert now >= weights > 100
    assert int(closed) <= now // 2  # small arrays of the heap may stay
    assert run("-c", PROGRAM, tiny_model, "0").stdout.startswith("0|")


def test_a_small_limit_is_named_and_the_command_goes_on(tiny_model: str) -> None:
    words = ("-m", "gguflow", "generate", "-m", tiny_model, "-p", "Hello", "-n", "4", "-t", "1",
             "--temp", "0", "--no-perf")  # fmt: skip
    plain = run(*words)
    done = run(*words, "--mlock", limit=64 << 10)
    assert (done.returncode, done.stdout) == (0, plain.stdout) and plain.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("--mlock: ") and " KiB of weights are locked in memory" in line
    assert "RLIMIT_MEMLOCK is 64 KiB; raise it by `ulimit -l unlimited`" in line
    assert run(*words, "--mlock", "-q", limit=64 << 10).stderr == ""


def test_as_much_as_fits_stays_locked(tiny_model: str) -> None:
    done = run("-c", PROGRAM, tiny_model, "1", limit=64 << 10)
    now, weights, note = done.stdout.splitlines()[0].split("|")
    assert int(now) <= 64 < int(weights) and note.startswith("`mlock`: ")


def test_ranges_are_whole_pages_each_once() -> None:
    page = 4096
    pieces = [(10 * page + 5, 10), (10 * page + 100, page), (20 * page, page), (3, 0)]
    if page == locked.mmap.PAGESIZE:
        assert list(locked._pages(pieces)) == [(10 * page, 12 * page), (20 * page, 21 * page)]
    assert list(locked._pages([])) == [] and locked.lock([]) is None


def test_what_is_locked_can_still_be_advised(tmp_path: Path) -> None:
    f = MappedFile(str(write_tiny(tmp_path / "a.gguf")))
    if locked.lock([(f.bytes.ctypes.data, f.bytes.nbytes)]) is not None:
        pytest.skip("RLIMIT_MEMLOCK is too low here")
    before = np.array(f.bytes)
    f.advise(0, f.bytes.nbytes, "dontneed")
    np.testing.assert_array_equal(f.bytes, before)
    f.close()


def test_the_option_is_true_or_false(tiny_model: str) -> None:
    assert Options().mlock is False
    with pytest.raises(OptionError, match="`mlock` is settled when a model is loaded"):
        Model.load(tiny_model, n_threads=1).with_options(mlock=True)
    with pytest.raises(OptionError, match="mlock 1: expected True or False"):
        Options(mlock=1)  # type: ignore[arg-type]
