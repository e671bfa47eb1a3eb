"""A simulated device's own thread: what is put into its stream runs in that order."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable

from gguflow.engine.threads import Thread

Job = Callable[[], None]


class Done:
    """Whether a job has ended, and what it raised."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.error: BaseException | None = None

    def wait(self) -> None:
        """Raises what the job raised."""
        self._event.wait()
        error, self.error = self.error, None
        if error is not None:
            raise error

    def run(self, job: Job) -> None:
        try:
            job()
        except BaseException as e:
            self.error = e
        self._event.set()


class Stream:
    """Ends its thread when nobody has it any more."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._is_started = False
        weakref.finalize(self, self._jobs.put, None)

    def put(self, job: Job) -> Done:
        """Have it run after what was put there before."""
        if not self._is_started:
            self._is_started = True
            Thread(target=_serve, args=(self._jobs,), daemon=True).start()
        done = Done()
        self._jobs.put(lambda: done.run(job))
        return done


def _serve(jobs: queue.SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job
