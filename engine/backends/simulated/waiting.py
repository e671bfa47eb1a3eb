"""Waiting for another program, as a device does: until somebody gives the run up."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from gguflow.engine.backends.base import Flag, Reduce

BUSY = 100  # looks one after the other; then the processor is left to who is waited for
PAUSE_S = 5e-5


def wait_until(test: Callable[[], bool], wait: Flag | Reduce) -> bool:
    """Whether it came true before the run was given up, which the waiting one may do itself."""
    given_up = ctypes.c_uint32.from_address(wait.given_up)
    until = time.monotonic_ns() + wait.timeout_ns
    n = 0
    while not test():
        if given_up.value:
            return False
        if time.monotonic_ns() > until:
            given_up.value = wait.code
        n += 1
        time.sleep(0 if n < BUSY else PAUSE_S)
    return True
