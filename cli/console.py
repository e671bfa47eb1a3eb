"""The standard streams, made alike on all systems."""

from __future__ import annotations

import os
import sys

_STDOUT, _STDERR = -11, -12
_ESCAPES = 4  # ENABLE_VIRTUAL_TERMINAL_PROCESSING


def prepare() -> None:
    """Text that an encoding lacks must not end a generation. On Windows pipes and files have UTF-8
    unless Python was told another, as they mostly do elsewhere, and consoles heed escape sequences.
    """
    streams = [s for s in (sys.stdin, sys.stdout, sys.stderr) if hasattr(s, "reconfigure")]
    if sys.platform == "win32":
        for stream in streams if "PYTHONIOENCODING" not in os.environ else ():
            stream.reconfigure(encoding="utf-8")
        _heed_escapes()
    for stream in streams:
        if stream is not sys.stdin:
            stream.reconfigure(errors="replace")


def _heed_escapes() -> None:
    """Windows Terminal does so anyway; the older console once it is asked."""
    import ctypes

    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009  # unknown to mypy elsewhere
    kernel.GetStdHandle.restype = ctypes.c_void_p
    for number in (_STDOUT, _STDERR):
        handle, mode = ctypes.c_void_p(kernel.GetStdHandle(number)), ctypes.c_uint32()
        if kernel.GetConsoleMode(handle, ctypes.byref(mode)):  # 0 for what is no console
            kernel.SetConsoleMode(handle, mode.value | _ESCAPES)
