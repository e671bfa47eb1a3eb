"""The `gguflow` command begins here, where Ctrl-C is heeded before anything else is imported."""

from __future__ import annotations

import os
import signal

MOMENT_S = 0.005


def _leave(number: int, frame: object) -> None:
    """While modules are imported and when all is done there is nothing to finish, and an exception
    could come out anywhere."""
    os._exit(130)


def _interrupt(number: int, frame: object) -> None:
    """In a command: as Python does it, but not while a module is looked for, where callbacks drop
    exceptions; a moment later then."""
    if getattr(getattr(frame, "f_code", None), "co_filename", "").startswith("<frozen importlib"):
        import threading

        again = threading.Timer(MOMENT_S, _repeat)
        again.daemon = True
        again.start()
        return
    raise KeyboardInterrupt


def _repeat() -> None:
    if os.name == "nt":  # where os.kill ends a process, whatever the signal
        import _thread

        _thread.interrupt_main()
    else:
        os.kill(os.getpid(), signal.SIGINT)


def rest_idle_threads() -> None:
    """To be called before numpy is imported: the threads that its linear algebra starts then sleep
    until they are needed, instead of spinning through 2^26 cycles first."""
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")


def main() -> int:
    """Run the command line; returns the exit code."""
    rest_idle_threads()
    # A shell's background jobs ignore Ctrl-C, and go on doing so.
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:
        signal.signal(signal.SIGINT, _leave)
    try:
        from gguflow.cli.main import main as run

        return run(begin=lambda: heeds and signal.signal(signal.SIGINT, _interrupt))
    except KeyboardInterrupt:
        return 130
    finally:
        if heeds:
            signal.signal(signal.SIGINT, _leave)
