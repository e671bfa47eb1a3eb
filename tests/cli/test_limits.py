"""What the machine does not give: exit code 4 and one line, whatever was being done; and Ctrl-C."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_helpers import ENV
from tiny_model import write_tiny

from gguflow.cli.errors import BAD_ARGUMENT, BAD_FILE, NO_RESOURCES, UsageError, exit_code
from gguflow.engine import files
from gguflow.engine.backends.cpu.native import ThreadError
from gguflow.engine.gguf import GgufError
from gguflow.engine.profile.errors import ProfilePathError

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")


def raised(error: Exception, cause: BaseException) -> Exception:
    """An error as it is when it was raised for another one that its message stands for."""
    try:
        try:
            raise cause
        except BaseException:
            raise error from None
    except Exception as e:
        return e


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE])
def test_one_code_for_all_that_is_lacking(code: int) -> None:
    cause = OSError(code, os.strerror(code))
    for error in (GgufError("x", "file", "no space", "room"), ProfilePathError("x"),
                  UsageError("x")):  # fmt: skip
        assert exit_code(raised(error, cause)) == NO_RESOURCES
    assert exit_code(raised(GgufError("x", "a", "b", "c"), OSError(errno.ENOENT, ""))) == BAD_FILE
    assert exit_code(raised(UsageError("x"), OSError(errno.ENOENT, ""))) == BAD_ARGUMENT
    assert exit_code(ThreadError("cannot start 500 threads")) == NO_RESOURCES
    assert exit_code(RuntimeError("can't start new thread")) == NO_RESOURCES
    assert exit_code(ImportError("x.so: failed to map segment from shared object")) == NO_RESOURCES


@pytest.mark.parametrize("command", ["quantize", "profile", "generate"])
def test_a_full_disk(call, tiny_model: str, tmp_path: Path, monkeypatch, command: str) -> None:
    """No file, no part of one, and exit code 4."""

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    out = str(tmp_path / "x.json")
    if command == "quantize":
        args = ["quantize", tiny_model, out, "Q8_0"]
    else:
        length = ["-n", "2"] if command == "generate" else ["--tg", "2"]
        args = [command, "-m", tiny_model, "-p", "A", *length, "--profile", out]
    code, _, err = call(*args)
    assert code == NO_RESOURCES and "No space left" in err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_no_room_for_a_mapping(call, tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("gguflow.engine.mapped.mmap.mmap", refuse)
    code, out, err = call("tokenize", "-m", tiny_model, "A")
    assert (code, out) == (NO_RESOURCES, "") and tiny_model in err


@linux
def test_max_memory(run, tmp_path: Path) -> None:
    """Refused before anything is loaded, with the figures; enough is enough."""
    path = str(write_tiny(tmp_path / "m.gguf", n_ctx_train=1 << 20))
    flags = ("generate", "-m", path, "-p", "A", "-n", "2", "--temp", "0", "--no-perf")
    done = run(*flags, "-c", "8000000", "--max-memory", "0.75")
    assert done.returncode == 4 and not done.stdout
    message = done.stderr.splitlines()[-1]
    assert message.startswith("gguflow: error: ") and len(done.stderr.splitlines()) == 2
    assert "of the host's memory are needed" in message and "the limit is 768.00 MiB" in message
    assert run(*flags, "-c", "64", "--max-memory", "0.75").returncode == 0
    done = run("tokenize", "-m", path, "A", "--max-memory", "0")
    assert done.returncode == 2 and "--max-memory" in done.stderr


BPE = """
import resource, sys
from gguflow.models.tokenizer import tokenizer, bpe, pretokenizers
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (int(sys.argv[1]) << 20), -1))
letters = [chr(0x4e00 + i) for i in range(200)]
pairs = [(a, b) for a in letters for b in letters]
values = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
          "tokenizer.ggml.tokens": letters + [a + b for a, b in pairs],
          "tokenizer.ggml.merges": [f"{a} {b}" for a, b in pairs]}
try:
    tokenizer.Tokenizer.from_metadata(values, "x").encode("\u4e00\u4e01" * 60_000)
    print("loaded")
except MemoryError as e:
    print(e)
"""


@linux
@pytest.mark.parametrize(("mib", "expected"), [(40, "no memory for the tok"), (300, "loaded")])
def test_a_vocabulary_without_memory(mib: int, expected: str) -> None:
    done = subprocess.run([sys.executable, "-c", BPE, str(mib)], capture_output=True, text=True)
    assert done.returncode == 0 and expected in done.stdout, done.stderr[-400:]


START = """
import signal, sys
from gguflow import start
install = signal.signal
def told(*args):
    install(*args)
    print(".", end="", flush=True)
signal.signal = told
sys.exit(start.main())
"""


def default_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_while_it_starts(tiny_model: str) -> None:
    """No traceback whenever it comes, and the exit code of an interruption."""
    args = ["generate", "-m", tiny_model, "-p", "A", "-n", "40", "-s", "1"]
    for wait in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):
        p = subprocess.Popen([sys.executable, "-c", START, *args], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, env=ENV,
                             preexec_fn=default_sigint)  # fmt: skip
        assert p.stdout is not None and p.stdout.read(1) == "."
        time.sleep(wait)
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=60)
        assert "Traceback" not in err and "Exception" not in err, (wait, err)
        assert p.returncode in (0, 130), (wait, err)


AT_A_BAD_TIME = """
import os, signal, sys
from gguflow import start

class Interrupts:
    def __set_name__(self, owner, name):  # what comes out here becomes a RuntimeError
        os.kill(os.getpid(), signal.SIGINT)

class Last:
    def __del__(self):  # when modules are taken down
        os.kill(os.getpid(), signal.SIGINT)

if sys.argv.pop(1) == "import":
    import gguflow.cli.generate as command
    signal.Interrupts = Interrupts
    run = command.run
    def interrupted(args):
        import interrupted_module
        return run(args)
    command.run = interrupted
else:
    last = Last()
sys.exit(start.main())
"""


@pytest.mark.parametrize(("when", "code"), [("import", 130), ("end", 0)])
def test_ctrl_c_where_exceptions_are_lost(
    tiny_model: str, tmp_path: Path, when: str, code: int
) -> None:
    module = "import signal\nclass Body:\n    field = signal.Interrupts()\n"
    (tmp_path / "interrupted_module.py").write_text(module)
    args = ["generate", "-m", tiny_model, "-p", "A", "-n", "4", "-s", "1"]
    done = subprocess.run([sys.executable, "-c", AT_A_BAD_TIME, when, *args], capture_output=True,
                          text=True, env={**ENV, "PYTHONPATH": str(tmp_path)}, timeout=60,
                          preexec_fn=default_sigint)  # fmt: skip
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr, done.stderr
    assert done.returncode == code, done.stderr
