"""Jobs for several threads, which run or are an error: see `threads`."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from gguflow.engine.threads import Thread

P = ParamSpec("P")
T = TypeVar("T")
Job = tuple["Future[Any]", Callable[[], Any]]


class Pool(Executor):
    """As concurrent.futures.ThreadPoolExecutor, with such threads: `submit` and `map` raise
    RuntimeError where the first of them cannot be had, and do with fewer afterwards.

    n_threads: at most, as many as there are processors by default. They end with `shutdown`, which
    `with` does, or when nobody has the pool any more.
    """

    def __init__(self, n_threads: int | None = None) -> None:
        self._n_threads = n_threads or os.cpu_count() or 1
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: list[Thread] = []
        self._lock = threading.Lock()
        self._is_over = False
        self._end = weakref.finalize(self, self._jobs.put, None)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._is_over:
                raise RuntimeError("the pool was shut down")
            self._grow()
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
        return future

    def fill(self) -> None:
        """Start all threads that there may be, so that no job has to. Raises RuntimeError where
        there is none to be had."""
        with self._lock:
            while len(self._threads) < self._n_threads:
                self._grow()

    def _grow(self) -> None:
        """One more thread for one more job, unless they are as many as may be."""
        if len(self._threads) >= self._n_threads:
            return
        thread = Thread(target=_work, args=(self._jobs,), daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
            self._n_threads = len(self._threads)
        else:
            self._threads.append(thread)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._is_over = True
            while cancel_futures:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if job is None:  # which is the last one, and stays
                    self._jobs.put(None)
                    break
                job[0].cancel()
        self._end()
        for thread in self._threads if wait else ():
            thread.join()


def _work(jobs: queue.SimpleQueue[Job | None]) -> None:
    """Until there is None, which every thread leaves to the next: one whose start was interrupted
    may be at work and on nobody's list."""
    while (job := jobs.get()) is not None:
        future, run = job
        del job
        if future.set_running_or_notify_cancel():
            try:
                found = run()
            except BaseException as e:
                future.set_exception(e)
            else:
                future.set_result(found)
                del found
        del future, run
    jobs.put(None)
