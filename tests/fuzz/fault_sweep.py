"""python tests/fuzz/fault_sweep.py: the system refuses memory, threads or the disk, at one call
after the other: allocations of --least bytes and anonymous maps, threads, writes, syncs, renames
(ENOSPC, EIO). Loading and generating, quantize, convert, session saves and cache writes then end
with a result or with an error that has a documented exit code; under a final name there is the old
file or the whole new one, and nothing beside it.

The calls are those of fault_shim.c, which is compiled and preloaded. Each fault has a fork of its
own.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from kill_moments import OLD, Ended, Job, jobs  # noqa: E402
from tiny_model import write_tiny  # noqa: E402

from gguflow.cli.errors import BAD_ARGUMENT, BAD_FILE, NO_RESOURCES, OK, exit_code  # noqa: E402
from gguflow.engine import threads  # noqa: E402
from gguflow.engine.model import Model  # noqa: E402

KINDS = {"memory": (1, errno.ENOMEM), "threads": (2, errno.EAGAIN), "full disk": (3, errno.ENOSPC),
         "bad disk": (3, errno.EIO)}  # fmt: skip
LATE = 60.0  # seconds that a run may take
threads.PATIENCE = 2.0  # with a thread that gets no memory


def build(folder: Path) -> Path:
    """The shim as a library."""
    out = folder / "fault_shim.so"
    subprocess.run([os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-o", out,
                    HERE / "fault_shim.c", "-ldl"], check=True)  # fmt: skip
    return out


def attempt(job: Job, kind: int, n: int, error: int, least: int) -> tuple[int, int, str]:
    """The exit code of a job of which the n-th call fails, how many calls there were and what it
    said; in a process of its own."""
    mine, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        code, said, shim = 1, "", ctypes.CDLL(None)
        shim.fault_arm(kind, ctypes.c_long(n), error, ctypes.c_size_t(least))
        try:
            job.write()
            code = 0
        except BaseException as e:
            shim.fault_arm(0, ctypes.c_long(0), 0, ctypes.c_size_t(0))
            code = e.code if isinstance(e, Ended) else exit_code(e)
            said = "".join(traceback.format_exception(e)[-6:])
        calls = shim.fault_calls() if code == 0 else n
        shim.fault_arm(0, ctypes.c_long(0), 0, ctypes.c_size_t(0))
        os.write(theirs, f"{calls}\n{said}".encode()[:60000])
        os._exit(code)
    os.close(theirs)
    with os.fdopen(mine, "rb") as pipe:
        if not select.select([pipe], [], [], LATE)[0]:
            os.kill(pid, signal.SIGKILL)
        calls, _, said = pipe.read().decode("utf-8", "replace").partition("\n")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, int(calls or 0), said


def check(job: Job, whole: bytes | None, kind: str, n: int, least: int) -> str:
    """One fault: `ran` or `told`. Raises AssertionError."""
    replaces = whole is not None and n % 2 == 0
    if whole is not None:
        job.target.unlink(missing_ok=True)
        if replaces:
            job.target.write_bytes(OLD)
    code, calls, said = attempt(job, KINDS[kind][0], n, KINDS[kind][1], least)
    at = f"{job.name}: {kind}, call {n}: exit code {code}"
    assert code in (OK, BAD_ARGUMENT, BAD_FILE, NO_RESOURCES), f"{at}\n{said}"
    if whole is not None:
        found = job.target.read_bytes() if job.target.exists() else None
        assert found == whole or (code != OK and found == (OLD if replaces else None)), at
        names = [name for name in os.listdir(job.target.parent) if name != job.target.name]
        assert not names, f"{at} leaves {names}"
    if code != OK:
        return "told"
    return "over" if calls < n else "ran"


def sweep(job: Job, kind: str, every: int, most: int, least: int) -> Counter[str]:
    """Faults at every so many calls until there are no more, or at so many. How they ended."""
    write, whole = job.target is not None, None
    code, n_calls, said = attempt(job, KINDS[kind][0], 0, 0, least)
    assert code == OK, said
    if write:
        whole = job.target.read_bytes()
    counts: Counter[str] = Counter()
    at = [*range(1, n_calls + 1)][:: max(every, -(-n_calls // most))]
    for n in at:
        counts[check(job, whole, kind, n, least)] += 1
    return counts


def run(every: int, most: int, only: str, least: int) -> None:
    def generate() -> None:
        model = Model.load(folder / "g.gguf", n_ctx=64, n_threads=2)
        list(model.generate("!!", max_tokens=3, seed=1))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny(folder / "g.gguf", n_ff=2048)
        todo = [*jobs(folder), Job("generate", None, generate)]
        for job in todo:
            job.write()  # imports all it needs
            for kind in KINDS:
                if only in ("", kind) and (job.target or kind in ("memory", "threads")):
                    counts = sweep(job, kind, every, most, least)
                    print(
                        f"{job.name}: {kind}: {counts.total()} faults, {dict(counts)}", flush=True
                    )


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--every", type=int, default=1, metavar="N", help="fail every N-th call only")
    p.add_argument(
        "--most", type=int, default=1 << 20, metavar="N", help="faults of a kind and job"
    )
    p.add_argument("--least", type=int, default=64 << 10, metavar="BYTES", help="of allocations")
    p.add_argument("--only", default="", choices=["", *KINDS])
    args = p.parse_args()
    if "fault_shim.so" not in os.environ.get("LD_PRELOAD", ""):
        with tempfile.TemporaryDirectory() as name:
            env = {**os.environ, "LD_PRELOAD": str(build(Path(name)))}
            return subprocess.run([sys.executable, *sys.argv], env=env).returncode
    run(args.every, args.most, args.only, args.least)
    return 0


if __name__ == "__main__":
    sys.exit(main())
