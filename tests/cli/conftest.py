"""Running the command line: in a process of its own, or in this one where that is enough."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from cli_helpers import ENV
from remote_device import RemoteMemory
from tiny_model import write_tiny

from gguflow.cli.main import main
from gguflow.engine import model as model_module
from gguflow.engine.backends.base import DeviceId, find_backend
from gguflow.engine.backends.cpu import CpuBackend

Run = Callable[..., subprocess.CompletedProcess[str]]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A llama of two layers with random weights, 64 tokens of context, a vocabulary of characters.

    Its name has a comma's neighbour, a space: names must survive on their way.
    """
    return str(write_tiny(tmp_path_factory.mktemp("model") / "tiny model.gguf", gain=3.0))


@pytest.fixture(scope="session")
def run() -> Run:
    """Run `gguflow ARGS` in a process of its own; input: what it reads."""

    def run_(*args: str, input: str | bytes = "", env: dict[str, str] | None = None):
        data = input.encode() if isinstance(input, str) else input
        done = subprocess.run([sys.executable, "-m", "gguflow", *args], input=data,
                              capture_output=True, timeout=120, env=ENV | (env or {}))  # fmt: skip
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return run_


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run `gguflow ARGS` in this process: exit code, standard output, standard error."""
    for name in list(os.environ):
        if name.startswith("GGUFLOW_"):
            monkeypatch.delenv(name)

    def call_(*args: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(list(args))
        out, err = capfd.readouterr()
        return code, out, err

    return call_


class Gpu(CpuBackend):
    """What the command asks of a GPU, on the processor's kernels and in memory of its own."""

    id = DeviceId("cuda")
    name = space = "cuda:0"
    links = None

    def __init__(self, n_threads: int) -> None:
        super().__init__(n_threads)
        self.processor = "Imaginary GPU"
        self.memory = RemoteMemory()


@pytest.fixture
def imaginary_gpu(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """A GPU that is there; the options it was opened with, in turn."""
    opened: list[dict[str, object]] = []

    def find(name: str, options: dict[str, object]) -> object:
        if name != "cuda":
            return find_backend(name, options)
        opened.append(options)
        return Gpu(1)

    monkeypatch.setattr(model_module, "find_backend", find)
    return opened
