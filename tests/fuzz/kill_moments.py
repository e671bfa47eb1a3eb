"""python tests/fuzz/kill_moments.py [--kills N] [--seed S]: ends quantize, convert, session saves
and cache writes with SIGKILL at random moments. Under the final name there is always the old file
or the whole new one; what a killed writer leaves is gone after the next start.

Each writer is a fork of this process, which has imported all it needs, so that the moments fall on
its work.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from tiny_model import write_tiny  # noqa: E402

from gguflow.cli.main import main as command  # noqa: E402
from gguflow.engine.graph import I64  # noqa: E402
from gguflow.engine.load import open_model  # noqa: E402
from gguflow.engine.model import Model  # noqa: E402
from gguflow.engine.options import Options  # noqa: E402
from gguflow.kernels.cuda import jit  # noqa: E402

OLD = b"what was there before"


class Ended(Exception):
    """A command ended with this exit code and said that."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"exit code {code}: {said}")
        self.code, self.said = code, said


@dataclass(frozen=True)
class Job:
    """write: makes the file `target`."""

    name: str
    target: Path
    write: Callable[[], object]


def jobs(folder: Path) -> list[Job]:
    """A folder each, for what is left behind to be seen."""
    model = write_tiny(folder / "m.gguf", n_ff=2048)
    session = Model(open_model(model), Options(n_ctx=256, n_threads=1, n_threads_batch=1))
    session.load_weights()
    places = [folder / n for n in ("quantize", "convert", "session", "cache", "kernels")]
    for place in places:
        place.mkdir()

    def run(*words: str) -> None:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
            code = command(list(words))
        if code:
            raise Ended(code, said.getvalue())

    def save() -> None:
        s = session.new_session()
        s.step(list(range(5, 85)), "none", prompt=True)
        s.save(places[2] / "s")

    from gguflow.engine.gguf import write_gguf

    counts = np.arange(1 << 18)
    compiled = jit.Compiled(bytes(1 << 20), ("kernel",))
    return [
        Job("quantize", places[0] / "q.gguf",
            lambda: run("quantize", str(model), str(places[0] / "q.gguf"), "Q8_0", "1")),
        Job("convert", places[1] / "c.gguf",
            lambda: run("convert", str(TESTS / "convert/data/llama"), str(places[1] / "c.gguf"))),
        Job("session", places[2] / "s", save),
        Job("cache", places[3] / "stats.gguf",
            lambda: write_gguf(places[3] / "stats.gguf", {"general.architecture": "activations"},
                               {"blk.0.activations": (I64, counts.shape, counts)})),
        Job("kernels", places[4] / "k.cubin",
            lambda: jit._write(places[4] / "k.cubin", jit._encode(compiled))),
    ]  # fmt: skip


def fork(job: Job) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        job.write()
        code = 0
    finally:
        os._exit(code)


def finish(job: Job) -> float:
    """Run to the end; seconds."""
    began = time.monotonic()
    _, status = os.waitpid(fork(job), 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"{job.name} failed"
    return time.monotonic() - began


def kill(job: Job, whole: bytes, moment: float, replaces: bool) -> str:
    """End one writer after `moment` seconds: what is then under the final name, `old` or `new`.
    replaces: whether there is a file already."""
    job.target.unlink(missing_ok=True)
    if replaces:
        job.target.write_bytes(OLD)
    pid = fork(job)
    time.sleep(moment)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    found = job.target.read_bytes() if job.target.exists() else None
    if found == whole:
        return "new"
    assert found == (OLD if replaces else None), f"{job.name} killed after {moment:.4f} s: partial"
    return "old"


def run(kills: int, seed: int) -> str:
    """So many kills, the jobs in turn. Raises AssertionError."""
    r, counts = Random(seed), {"old": 0, "new": 0}
    with tempfile.TemporaryDirectory() as name:
        todo = jobs(Path(name))
        wholes, seconds = [], []
        for job in todo:
            seconds.append(min(finish(job) for _ in range(2)))
            wholes.append(job.target.read_bytes())
            finish(job)
            assert job.target.read_bytes() == wholes[-1], f"{job.name}: not the same twice"
        left = 0
        for i in range(kills):
            k = i % len(todo)
            moment = r.uniform(0, 1.1 * seconds[k])
            counts[kill(todo[k], wholes[k], moment, r.random() < 0.5)] += 1
            left += len(os.listdir(todo[k].target.parent)) - todo[k].target.exists()
        for job, whole in zip(todo, wholes, strict=True):
            finish(job)
            assert job.target.read_bytes() == whole
            names = os.listdir(job.target.parent)
            assert names == [job.target.name], f"{job.name} leaves {names}"
        return (
            f"{kills} kills: the old file or none {counts['old']} times, the new one "
            f"{counts['new']} times; parts seen between {left} times, none at the end"
        )


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--kills", type=int, default=500)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    print(run(args.kills, args.seed))
