"""An object in a process of its own on this machine, called through a pipe.

What answers HTTP and what steps a device then have an interpreter each: with one for both, a step
waits while texts are written, and the device with it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from gguflow.engine.threads import Thread
from gguflow.server.apart import start_threads

from .actor import Actor, ActorLostError

END_S = 10.0  # for a process to end by itself before it is made to
END = "end"  # the message that tells it to
Make = Callable[[], Any]


class Process:
    """`Actor` of the object that `make` makes in a new process; `make` has to be importable there.

    The process ends with this one, or when it is told to. Used from one event loop.
    """

    def __init__(self, make: Make, switch: float) -> None:
        """switch: seconds after which one of its threads lets another one go on."""
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_main, args=(theirs, make, switch), name="gguflow-engine", daemon=True
        )
        self._process.start()
        theirs.close()
        self._loop = asyncio.get_running_loop()
        self._numbers = count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._lost = ""
        Thread(target=self._read, name="gguflow-pipe", daemon=True).start()

    async def call(self, name: str, *args: Any) -> Any:
        number = next(self._numbers)
        done = self._calls[number] = self._loop.create_future()
        try:
            self._send((number, name, args))
            return await done
        finally:
            self._calls.pop(number, None)

    def tell(self, name: str, *args: Any) -> None:
        with suppress(ActorLostError):
            self._send((-1, name, args))

    def end(self) -> None:
        """Tell it to end; the longest it may take is END_S."""
        # A pipe that another thread reads is not closed by closing it.
        with suppress(OSError, ActorLostError):
            self._send(END)
        self._lose("it was told to end")
        Thread(target=self._bury, name="gguflow-end", daemon=True).start()

    def join(self) -> None:
        """Wait for the end of a process that was told to."""
        self._bury()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    # -- inside ----------------------------------------------------------------------------------

    def _send(self, message: Any) -> None:
        if self._lost:
            raise ActorLostError(self._lost)
        try:
            self._pipe.send(message)
        except OSError:
            raise ActorLostError(self._why()) from None

    def _read(self) -> None:
        why = ""
        try:
            while True:
                self._loop.call_soon_threadsafe(self._settle, *self._pipe.recv())
        except (EOFError, OSError):
            why = self._why()
        except RuntimeError:  # the loop is closed: nobody waits any more
            return
        except Exception as e:
            why = f"what it said cannot be read: {e}"
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._lose, why)

    def _settle(self, number: int, value: Any, error: Exception | None) -> None:
        done = self._calls.get(number)
        if done is None or done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        for done in self._calls.values():
            if not done.done():
                done.set_exception(ActorLostError(self._lost))

    def _why(self) -> str:
        self._process.join(1.0)
        code = self._process.exitcode
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"

    def _bury(self) -> None:
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class ProcessHosts:
    """One replica in a process of its own. make: makes it there."""

    n_stages = 1

    def __init__(self, make: Make, switch: float) -> None:
        self._make, self._switch = make, switch
        self._processes: dict[int, Process] = {}
        self._ending: list[Process] = []

    async def open(self) -> None:
        pass

    def make(self, i: int) -> tuple[Actor, tuple[Actor, ...]]:
        self._processes[i] = Process(self._make, self._switch)
        return self._processes[i], ()

    def end(self, i: int) -> None:
        if (process := self._processes.pop(i, None)) is not None:
            process.end()
            self._ending = [p for p in self._ending if p.is_alive] + [process]

    async def close(self) -> None:
        """Returns once all have ended, and their devices' memory is free."""
        for process in self._ending:
            await asyncio.to_thread(process.join)
        self._ending.clear()


# -- the other side --------------------------------------------------------------------------------


def _main(pipe: Connection, make: Make, switch: float) -> None:
    """The process: answers calls until it is told to end, or the other side is gone."""
    # Ctrl-C in a terminal reaches all processes there; the one that answers HTTP says when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(switch)
    with suppress(BrokenPipeError), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_answer_calls(pipe, make()))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop that answers HTTP has, too: what it takes here, the thread that steps waits
    for."""
    if sys.platform == "win32":
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _answer_calls(pipe: Connection, what: Any) -> None:
    start_threads()
    loop = asyncio.get_running_loop()
    calls: asyncio.Queue[tuple[int, str, Any] | None] = asyncio.Queue()
    tasks: set[asyncio.Task[None]] = set()

    def read() -> None:
        with suppress(EOFError, OSError):
            while (call := pipe.recv()) != END:
                loop.call_soon_threadsafe(calls.put_nowait, call)
        loop.call_soon_threadsafe(calls.put_nowait, None)

    async def answer(number: int, name: str, args: tuple[Any, ...]) -> None:
        value, error = None, None
        try:
            value = await getattr(what, name)(*args)
        except Exception as e:
            error = e
        if number >= 0:
            with suppress(OSError):  # nobody is there who would hear it
                pipe.send_bytes(_dumped(number, value, error))

    Thread(target=read, name="gguflow-pipe", daemon=True).start()
    while (call := await calls.get()) is not None:
        task = loop.create_task(answer(*call))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await what.close()


def _dumped(number: int, value: Any, error: Exception | None) -> Any:
    """An answer's bytes. Errors that do not survive the way go as a text."""
    try:
        data = ForkingPickler.dumps((number, value, error))
        if error is not None:
            ForkingPickler.loads(data)
        return data
    except Exception:
        text = f"{type(error).__name__}: {error}" if error is not None else "it cannot be sent"
        return ForkingPickler.dumps((number, None, RuntimeError(text)))
