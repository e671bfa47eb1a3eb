"""A model's file that another program cuts short or writes to while it is in use: an error that
names it, and never the end of the process."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

import gguflow
from gguflow.engine import mapped
from gguflow.engine.gguf import GgufError, GgufFile, write_gguf
from gguflow.engine.graph import F32

if not mapped._guard():
    pytest.skip("the guard library is not built", allow_module_level=True)

ROWS = 4096


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    """A model of unpacked weights, which kernels read where they are mapped."""
    return write_tiny(tmp_path / "m.gguf", n_ff=ROWS)


def test_cut_short_between_runs(model_path: Path) -> None:
    with gguflow.Model.load(model_path) as model:
        assert len("".join(model.generate("AB", max_tokens=4, seed=1)))
        os.truncate(model_path, 8192)
        with pytest.raises(GgufError, match=f"^{model_path}: file: found one .*expected the file"):
            list(model.generate("AB", max_tokens=4, seed=1))


def test_cut_short_in_the_middle_of_a_generation(model_path: Path) -> None:
    with gguflow.Model.load(model_path) as model:
        pieces = model.generate("AB", max_tokens=40, seed=1, stop_at_eog=False)
        next(pieces)
        os.truncate(model_path, 8192)
        with pytest.raises(GgufError, match=str(model_path)):
            list(pieces)


def test_written_to(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gguflow.engine.serving.runner.LOOK_NS", 0)
    with gguflow.Model.load(model_path) as model:
        pieces = model.generate("AB", max_tokens=40, seed=1, stop_at_eog=False)
        next(pieces)
        with open(model_path, "r+b") as f:
            f.seek(-64, os.SEEK_END)
            f.write(b"\x42" * 64)
        with pytest.raises(GgufError, match=f"{model_path}.*written to while it is in use"):
            list(pieces)


def test_a_new_file_under_the_name_is_another_file(model_path: Path) -> None:
    with gguflow.Model.load(model_path) as model:
        before = "".join(model.generate("AB", max_tokens=9, temperature=0))
        other = write_tiny(model_path.with_name("other.gguf"), seed=5)
        os.replace(other, model_path)
        assert "".join(model.generate("AB", max_tokens=9, temperature=0)) == before


def test_cut_short_while_it_is_read(tmp_path: Path) -> None:
    """numpy reads zeros, `check` raises; so does a quantization, which leaves no file."""
    path = tmp_path / "x.gguf"
    write_gguf(path, {}, {"w": (F32, (ROWS, 64), np.ones((ROWS, 64), np.float32))})
    with GgufFile.open(path) as f:
        f.check()
        w = f.array("w")
        os.truncate(path, 8192)
        assert w.sum() < w.size
        with pytest.raises(GgufError, match=r"x\.gguf: file: found one whose bytes could not be"):
            f.check()


def test_quantization_of_a_file_cut_short(model_path: Path) -> None:
    out = model_path.with_name("out.gguf")
    code = (
        "import os, sys\n"
        "from gguflow.cli import main\n"
        "from gguflow.engine.gguf import reader\n"
        "data = reader.GgufFile.data\n"
        "def cut(self, name):\n"
        "    os.truncate(sys.argv[1], 8192)\n"
        "    return data(self, name)\n"
        "reader.GgufFile.data = cut\n"
        "sys.exit(main.main(['quantize', *sys.argv[1:]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(model_path), str(out), "F16"],
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 3 and str(model_path) in done.stderr, done.stderr
    assert os.listdir(model_path.parent) == [model_path.name]


# What becomes of the signal after our handler was put in, until a file is cut short.
TAKEN = {
    "nothing": "pass",
    "faulthandler": "faulthandler.enable()",
    "default": "signal.signal(signal.SIGBUS, signal.SIG_DFL)",
    "python": "signal.signal(signal.SIGBUS, lambda *_: os._exit(9))",
    "twice": "faulthandler.enable(); mapped.hold(); faulthandler.disable(); faulthandler.enable()",
    "blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGBUS})",
}


@pytest.mark.parametrize("taken", TAKEN)
def test_who_takes_the_signal_afterwards(model_path: Path, taken: str) -> None:
    """A generation by two threads begins after that and reads what is missing."""
    code = (
        "import faulthandler, os, signal, sys, time\n"
        "import gguflow\n"
        "from gguflow.engine import mapped\n"
        "from gguflow.engine.gguf import GgufError\n"
        "with gguflow.Model.load(sys.argv[1], n_threads=2) as model:\n"
        "    list(model.generate('AB', max_tokens=4, seed=1))\n"
        f"    {TAKEN[taken]}\n"
        "    time.sleep(0.03)\n"
        "    os.truncate(sys.argv[1], 8192)\n"
        "    try:\n"
        "        list(model.generate('AB', max_tokens=4, seed=1))\n"
        "    except GgufError as e:\n"
        "        print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(model_path)],
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert str(model_path) in done.stdout


@pytest.mark.parametrize("taken", ["nothing", "faulthandler", "twice"])
def test_bus_errors_elsewhere_still_end_the_process(tmp_path: Path, taken: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(1 << 16))
    code = (
        "import faulthandler, mmap, os, signal, sys\n"
        "from gguflow.engine import mapped\n"
        "mapped.hold()\n"
        f"{TAKEN[taken]}\n"
        "mapped.hold()\n"
        "f = open(sys.argv[1], 'r+b')\n"
        "m = mmap.mmap(f.fileno(), 0)\n"
        "os.truncate(sys.argv[1], 0)\n"
        "m[0]\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, timeout=60)
    assert done.returncode == -7  # SIGBUS
    assert (b"Bus error" in done.stderr) == ("faulthandler" in TAKEN[taken])


def test_a_mapping_where_another_one_was(tmp_path: Path) -> None:
    """One that has been unmapped and not been taken off the list yet."""
    (tmp_path / "f").write_bytes(b"1" * (1 << 16))
    with open(tmp_path / "f", "r+b") as f:
        data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        guard, bytes_of = mapped._guard(), np.frombuffer(data, np.uint8)
        assert guard is not None
        at = ctypes.c_void_p(bytes_of.ctypes.data)
        old, new = (
            guard.gf_guard_add(at, ctypes.c_int64(n), ctypes.c_int32(0)) for n in (1 << 20, 1 << 16)
        )
        f.truncate(0)
        assert not bytes_of.any()
        assert [guard.gf_guard_lost(place) for place in (old, new)] == [0, 1]
        guard.gf_guard_remove(old), guard.gf_guard_remove(new)


def test_places_are_given_back(model_path: Path) -> None:
    for _ in range(1100):  # more than there are places
        with GgufFile.open(model_path):
            pass
    f = GgufFile.open(model_path)
    assert all(m._mapped._place >= 0 for m in f._files.values())
    w = f.array("token_embd.weight")
    f.close()
    f.check()
    assert w[0].any()  # arrays outlive their file
