"""Threads for what would hold up an event loop, all there before the first request.

`asyncio.to_thread` starts them one by one, in the event loop. One that gets no memory for its first
call never says that it runs, and who starts it waits for that for ever: here it would be everybody.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from gguflow.engine.pool import Pool

P = ParamSpec("P")
T = TypeVar("T")


class _Threads(ThreadPoolExecutor):
    """What an event loop takes for its own, with the threads of a `Pool`."""

    def __init__(self, n: int) -> None:
        super().__init__(1)  # which starts none before the first job
        self._pool = Pool(n)
        self._pool.fill()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


def start_threads() -> None:
    """Those of the running event loop, as many as it would start. Raises RuntimeError where there
    is none to be had."""
    n = min(32, (os.cpu_count() or 1) + 4)
    asyncio.get_running_loop().set_default_executor(_Threads(n))
