"""The `gguflow` command begins here, where Ctrl-C is heeded before anything else is imported."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
from types import FrameType

MOMENT_S = 0.005
_KEEPERS = ("<frozen importlib._bootstrap>", f"{os.sep}weakref.py", f"{os.sep}_weakrefset.py")


def _leave(number: int, frame: object) -> None:
    """While modules are imported and when all is done there is nothing to finish, and an exception
    could come out anywhere."""
    os._exit(130)


def _keeps_exceptions(frame: FrameType | None) -> bool:
    """Whether somebody further out drops exceptions, or makes others of them: an import, whose
    callbacks and class bodies do, or the end of an object."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or code.co_filename.endswith(_KEEPERS):
            return True
        frame = frame.f_back
    return False


def _interrupt(number: int, frame: FrameType | None) -> None:
    """In a command: as Python does it, but a moment later where an exception would be lost."""
    if _keeps_exceptions(frame):
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
    gc.disable()  # what imports make stays
    # A shell's background jobs ignore Ctrl-C, and go on doing so.
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:
        signal.signal(signal.SIGINT, _leave)
        # The interpreter's last act gives handlers back, and a Ctrl-C then would end the process by
        # the signal, whatever its exit code was to be. What is registered first runs last.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)

    def begin() -> None:
        gc.freeze()  # see import_engine in cli/load.py
        gc.enable()
        if heeds:
            signal.signal(signal.SIGINT, _interrupt)

    try:
        from gguflow.cli.main import main as run

        return run(begin=begin)
    except KeyboardInterrupt:
        return 130
    finally:
        if heeds:
            signal.signal(signal.SIGINT, _leave)
