"""A device on which a run fails, or that is lost: errors for those in work; the server goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from serving import Running
from tiny_model import write_tiny

from gguflow.engine.backends import simulated
from gguflow.engine.backends.cuda import CudaError
from gguflow.engine.backends.simulated.loop import SimulatedLoop
from gguflow.engine.backends.simulated.program import SimulatedProgram
from gguflow.engine.options import Options
from gguflow.server.config import ModelSpec

SIZES: dict[str, Any] = {"n_ctx": 128, "n_seqs": 4, "n_cache": 512, "n_threads": 1}
SIMULATED: dict[str, Any] = {
    "backends": ("numpy",), "devices": ("simulated:0", "simulated:1"), **SIZES
}  # fmt: skip
MESSAGE = "Imaginary GPU: cudaErrorLaunchFailure"


@pytest.fixture(params=["layer", "tensor"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    """A model on two devices, with layers in turn or parts of all, and one on the processor."""
    devices = Options(split_mode=request.param, **SIMULATED)
    paths = [write_tiny(tmp_path / f"m{i}.gguf", seed=i, gain=2.0) for i in range(2)]
    specs = [ModelSpec("m0", paths[0], devices), ModelSpec("m1", paths[1], Options(**SIZES))]
    running = Running(specs)
    yield running
    running.stop()


def ask(server: Running, prompt: str, model: str = "m0", **more: Any) -> tuple[int, Any]:
    body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0, **more}
    status, _, answer = server.post("/v1/completions", body)
    return status, answer


def text(server: Running, prompt: str, model: str = "m0") -> str:
    status, answer = ask(server, prompt, model)
    assert status == 200, answer
    found: str = answer["choices"][0]["text"]
    return found


class Fault:
    """The calls of a method, of which the n-th raises, or all from there on."""

    def __init__(self, where: type, name: str, n: int, for_good: bool = False) -> None:
        self.calls, self.raised = 0, 0
        inner = getattr(where, name)

        def call(program: Any, *args: Any, **kw: Any) -> Any:
            self.calls += 1
            if self.calls == n or (for_good and self.calls > n):
                self.raised += 1
                raise CudaError(MESSAGE)
            return inner(program, *args, **kw)

        self.call = call


# A launch that is refused, what fails on the device and shows when it is waited for; in a prompt
# (the first run), among several rows, and where the device runs ahead of the host.
CASES = [
    ("layer", SimulatedProgram, "start", 1), ("tensor", SimulatedProgram, "finish", 2),
    ("tensor", SimulatedLoop, "wait", 2),
]  # fmt: skip
MORE = [
    ("layer", SimulatedProgram, "_run", 40), ("tensor", SimulatedLoop, "launch", 3),
    ("tensor", SimulatedProgram, "start", 2), ("layer", SimulatedProgram, "finish", 1),
    ("layer", SimulatedProgram, "_run", 3), ("tensor", SimulatedLoop, "start", 1),
    ("tensor", SimulatedLoop, "launch", 4),
]  # fmt: skip


@pytest.mark.parametrize(
    ("server", "where", "name", "n"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
    indirect=["server"],
)
def test_a_run_that_fails(
    server: Running, monkeypatch: pytest.MonkeyPatch, where: type, name: str, n: int
) -> None:
    prompts = ["abc", "hello there", "xyz" * 9]
    alone = {p: text(server, p) for p in prompts}
    other = text(server, "abc", "m1")
    failed = server.loaded
    fault = Fault(where, name, n)
    monkeypatch.setattr(where, name, fault.call)
    with ThreadPoolExecutor(4) as pool:
        beside = pool.submit(text, server, "abc", "m1")
        answers = [*pool.map(lambda p: (p, *ask(server, p)), prompts)]
        assert beside.result() == other
    assert fault.raised == 1
    assert 503 in [status for _, status, _ in answers]
    for prompt, status, answer in answers:
        if status == 503:
            assert answer["error"]["type"] == "server_error"
            assert MESSAGE in answer["error"]["message"]
        else:  # it came when the engine had been replaced
            assert status == 200 and answer["choices"][0]["text"] == alone[prompt]
    # Those who come later are answered as if nothing had been, by another engine.
    assert {p: text(server, p) for p in prompts} == alone
    assert server.service.manager._slots["m0"].loaded is not failed
    server.wait_idle()
    assert server.get("/health")[0] == 200


@pytest.mark.parametrize("server", ["tensor"], indirect=True)
def test_a_stream_ends_with_the_error(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    text(server, "abc")
    monkeypatch.setattr(SimulatedLoop, "wait", Fault(SimulatedLoop, "wait", 1).call)
    status, events = ask(server, "abc", stream=True, max_tokens=40)
    assert status == 200
    said = [line.removeprefix("data: ") for line in events.decode().split("\n\n") if line]
    *pieces, last = map(json.loads, said)  # and no [DONE]
    assert pieces and all(p["choices"][0]["finish_reason"] is None for p in pieces)
    assert last["error"]["type"] == "server_error" and MESSAGE in last["error"]["message"]


def test_a_device_that_is_lost(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it works until it is back; what is elsewhere does."""
    alone, other = text(server, "abc"), text(server, "abc", "m1")

    def gone(options: dict[str, Any]) -> None:
        raise CudaError("no GPU can be used (cudaErrorDevicesUnavailable)")

    with monkeypatch.context() as m:
        m.setattr(SimulatedProgram, "start", Fault(SimulatedProgram, "start", 1, True).call)
        m.setattr(SimulatedLoop, "start", Fault(SimulatedLoop, "start", 1, True).call)
        m.setattr(simulated, "create", gone)
        for _ in range(3):
            status, answer = ask(server, "abc")
            assert status == 503 and answer["error"]["type"] == "server_error", answer
            assert text(server, "abc", "m1") == other
        assert answer["error"]["message"] == "m0 cannot be loaded; the log says why"
        status, answer = server.get("/health")[::2]
        assert status == 503 and answer["error"]["message"].startswith("m0 cannot be loaded again")
    assert text(server, "abc") == alone
    assert server.get("/health")[0] == 200
    server.wait_idle()
