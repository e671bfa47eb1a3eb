"""Several processes share a run of the GPU tests (tests/sanitize_gpu.sh): each takes the next few
tests that nobody has taken, and writes down what they launched.

Environment: QUEUE: a folder of this run, the same for all. WORKER: this process's name in it.
QUEUE_UNTIL: the time (seconds since 1970) after which no test begins. QUEUE_TEST: seconds that a
test may take; one that takes longer ends the process, as whatever stands on a device can only be
left so. QUEUE_PAIR: 1: this process sees all GPUs and begins with the tests that use several;
0: it leaves these out; not set: there is one GPU, and it is for all tests.

Files of the folder: `order`: a line a test, which come first, in this order; `done`: tests that
need not run. Written: `WORKER.jsonl`: a test a line; `over.WORKER`: it ended as nothing was left.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import pytest

SEVERAL = ("test_parallel_gpu.py", "test_stages_gpu.py")  # which use all GPUs there are
AT_ONCE = 6  # tests that are taken together: neighbours launch the same kernels
TOO_LONG = 86  # exit code
FEW = 4  # processes that open a device at the same time
GRACE = 10.0  # seconds behind QUEUE_UNTIL after which the process ends whatever it does


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []


class Record:
    """What each test launched, how it ended and how long it took, a JSON line each."""

    def __init__(self, path: Path) -> None:
        self._out = path.open("a")
        self._kernels: dict[str, None] = {}
        self._outcomes: list[str] = []
        self._test = ""
        self._began = 0.0

    def saw(self, kernel: Any) -> None:
        self._kernels[" ".join((kernel.source, kernel.entry, *kernel.options))] = None

    def begin(self, test: str) -> None:
        self._kernels.clear()
        self._outcomes.clear()
        self._test, self._began = test, time.monotonic()

    def phase(self, outcome: str) -> None:
        self._outcomes.append(outcome)

    def end(self, outcome: str = "") -> None:
        """outcome: if not what the phases say."""
        said = self._outcomes
        worst = next((o for o in ("failed", "skipped") if o in said), "passed")
        line = {"test": self._test, "outcome": outcome or worst,
                "seconds": round(time.monotonic() - self._began, 3),
                "kernels": sorted(self._kernels)}  # fmt: skip
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


def watch_launches(record: Record) -> None:
    """Every launch of our kernels, those that are captured in a graph included."""
    from gguflow.engine.backends.cuda.modules import BoundLaunch

    issue = BoundLaunch.issue

    def recorded(self: Any) -> None:
        record.saw(self.launch.kernel)
        issue(self)

    BoundLaunch.issue = recorded  # type: ignore[method-assign]


def open_device() -> None:
    """If there is one. Only a few processes at a time: the driver serves all at once and is done
    with none before it is done with all. Under memcheck memory comes from the driver, an allocation
    a buffer: of a pool's it would not see where one ends."""
    from gguflow.engine.backends.base import find_backend
    from gguflow.engine.backends.cuda import CudaError

    with suppress(CudaError), one_of_a_few():
        if os.environ.get("GGUFLOW_SANITIZED") == "memcheck":
            import cupy

            cupy.cuda.set_allocator(None)
        find_backend("cuda")


@contextmanager
def one_of_a_few() -> Iterator[None]:
    """Waits until fewer than FEW processes are in here."""
    with ExitStack() as stack:
        places = [Path(tempfile.gettempdir()) / f"gguflow-opens.{i}" for i in range(FEW)]
        files = [stack.enter_context(place.open("w")) for place in places]
        while not any(map(_locks, files)):
            time.sleep(0.1)
        yield


def _locks(file: TextIO) -> bool:
    """Until the file is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_lost() -> bool:
    """Whether the device takes nothing more from this process."""
    try:
        import cupy

        cupy.cuda.runtime.deviceSynchronize()
    except Exception:
        return True
    return False


class Queue:
    def __init__(self, folder: Path, worker: str) -> None:
        self.folder, self.worker = folder, worker
        self.until = float(os.environ.get("QUEUE_UNTIL", "inf"))
        self.seconds = float(os.environ.get("QUEUE_TEST", "inf"))
        self.pair = os.environ.get("QUEUE_PAIR", "")
        self.record = Record(folder / f"{worker}.jsonl")
        self.is_lost = False
        (folder / "taken").mkdir(exist_ok=True)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        done = set(_lines(self.folder / "done"))
        place = {test: i for i, test in enumerate(_lines(self.folder / "order"))}
        items[:] = [x for x in items if x.nodeid not in done]
        items.sort(key=lambda x: place.get(x.nodeid, len(place)))

    def _take(self, name: str) -> bool:
        try:
            os.close(os.open(self.folder / "taken" / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def taken(self, items: list[pytest.Item]) -> Iterator[pytest.Item]:
        """Tests that this process runs."""
        lists = {"one": items}
        if self.pair:
            several = [x for x in items if x.path.name in SEVERAL]
            others = [x for x in items if x.path.name not in SEVERAL]
            lists = {"one": others} if self.pair == "0" else {"several": several, "one": others}
        for name, some in lists.items():
            size = 1 if name == "several" else AT_ONCE
            for i in range(0, len(some), size):
                if self.is_lost:
                    return
                if time.time() > self.until:
                    break
                if self._take(f"{name}.{i // size}"):
                    yield from some[i : i + size]
        (self.folder / f"over.{self.worker}").touch()

    def _begin(self) -> None:
        """Opening a device takes long where many processes do, and is no test's time."""
        began = time.monotonic()
        watch_launches(self.record)
        open_device()
        print(f"{self.worker}: the device was opened in {time.monotonic() - began:.1f} s")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._begin()
        mine = self.taken(session.items)
        item = next(mine, None)
        while item is not None:
            following = next(mine, None)
            self._run(item, following)
            if self.is_lost:
                break
            item = following
        return True

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        left = max(1.0, min(self.seconds, self.until + GRACE - time.time()))
        guard = threading.Timer(left, self._give_up)
        guard.daemon = True
        guard.start()
        self.record.begin(item.nodeid)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        guard.cancel()
        self.record.end()

    def _give_up(self) -> None:
        self.record.end("unfinished")
        os._exit(TOO_LONG)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.record.phase("passed" if hasattr(report, "wasxfail") else report.outcome)
        if report.failed and is_lost():
            self.is_lost = True


def join(config: pytest.Config, folder: str) -> None:
    """Have this process take its tests from a queue."""
    config.pluginmanager.register(Queue(Path(folder), os.environ["WORKER"]), "gpu-queue")
