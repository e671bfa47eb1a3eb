"""The native thread pool, where the system does not give the threads it is asked for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
from harness import GuardedMemory, build_case, nmse

from gguflow.engine.backends.cpu.backend import CpuBackend
from gguflow.engine.backends.numpy import read
from gguflow.engine.graph import Case, Operand, op_spec

SCRIPT = """
import resource
from gguflow.engine.backends.cpu.backend import CpuBackend
from gguflow.engine.backends.cpu.native import CpuLibraryError

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))  # room for a few stacks
try:
    CpuBackend(n_threads=500).pool()
except CpuLibraryError as e:
    print(e)
"""


def test_too_few_threads_are_an_error() -> None:
    if not sys.platform.startswith("linux"):
        return
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "cannot start 500 threads"), done.stderr


def test_an_op_is_left_in_the_middle() -> None:
    """A single long product ends soon after it is told to, and the program runs again as it did."""
    backend, rng = CpuBackend(n_threads=2), np.random.default_rng(0)
    w = rng.standard_normal((2048, 1024)).astype(np.float32)
    x = rng.standard_normal((4096, 1024)).astype(np.float32)
    operands = Operand(w.shape, "f32", w, role="weight"), Operand(x.shape, "f32", x)
    built = build_case(op_spec("mul_mat"), Case(operands), rng)
    memory = GuardedMemory(backend, built)
    program = backend.lower([built.node], memory)

    def seconds() -> float:
        began = time.perf_counter()
        program.run()
        return time.perf_counter() - began

    whole, shortest, told = min(seconds() for _ in range(3)), 1e9, [0.0]

    def interrupt() -> None:
        told[0] = time.perf_counter()
        backend.lib.cdll.gf_interrupt()

    for _ in range(8):  # others may have the processors for a moment
        timer = threading.Timer(whole / 8, interrupt)
        timer.start()
        try:
            program.run()
        except KeyboardInterrupt:
            shortest = min(shortest, time.perf_counter() - told[0])
        timer.join()
    assert shortest < whole / 3
    program.run()
    result = read(built.node, {built.node.owner: memory.bytes_of(built.node.owner)})
    assert nmse(result, built.expected) < 1e-6
