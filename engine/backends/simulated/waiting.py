"""Waiting for another program, as a device does: busily, until somebody gives the run up."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from gguflow.engine.backends.base import Flag, Reduce


def wait_until(test: Callable[[], bool], wait: Flag | Reduce) -> bool:
    """Whether it came true before the run was given up, which the waiting one may do itself."""
    given_up = ctypes.c_uint32.from_address(wait.given_up)
    until = time.monotonic_ns() + wait.timeout_ns
    while not test():
        if given_up.value:
            return False
        if time.monotonic_ns() > until:
            given_up.value = wait.code
        time.sleep(0)
    return True
