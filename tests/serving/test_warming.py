"""Plans are made before requests need them: which, while nobody waits, and without a trace."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_device import RemoteBackend
from tiny_model import write_tiny

from gguflow.engine.devices import Devices
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.plan_key import PlanKey
from gguflow.engine.sampling import SamplerSettings
from gguflow.engine.serving import aio
from gguflow.engine.serving import warming as module
from gguflow.engine.serving.aio import AsyncEngine
from gguflow.engine.serving.buckets import Buckets
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.engine.serving.runner import Runner

N_SEQS, N_CHUNK = 4, 32


@pytest.fixture(scope="module", params=["llama", "gemma3", "qwen3next", "qwen3moe"])
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Model:
    """On a device, which is not the host. With windows, recurrent states, experts, or without."""
    path: Path = write_tiny(tmp_path_factory.mktemp("m") / "m.gguf", request.param, gain=2.0)
    device = RemoteBackend()
    options = Options(n_ctx=128, n_seqs=N_SEQS, n_ubatch=N_CHUNK, backends=("remote",))
    model = Model(open_model(str(path)), options, Devices(lambda kind, index: device))
    model.load_weights()
    return model


def requests(n: int) -> list[Request]:
    return [
        Request([1 + (i + j) % 60 for j in range(2 + 9 * i % 40)], 3 + 2 * i,
                SamplerSettings(seed=i))
        for i in range(n)
    ]  # fmt: skip


def texts(engine: Engine, asked: Sequence[Request]) -> list[list[int]]:
    ids = [engine.add(r) for r in asked]
    found: dict[int, list[int]] = {id: [] for id in ids}
    while engine.has_work:
        for token in engine.step():
            assert token.error is None and token.id is not None
            found[token.request].append(token.id)
    return [*found.values()]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[PlanKey]:
    """The plans that are lowered from here on."""
    keys: list[PlanKey] = []
    plan = Runner.plan

    def watched(self: Runner, key: PlanKey, copy: int = 0) -> Any:
        if not self.has_plan(key):
            keys.append(key)
        return plan(self, key, copy)

    monkeypatch.setattr(Runner, "plan", watched)
    return keys


def test_requests_find_their_plans_and_get_the_same_texts(
    model: Model, made: list[PlanKey]
) -> None:
    expected = texts(Engine(model), requests(12))
    assert len(made) > 5
    made.clear()
    engine = Engine(model)
    warming = engine.warming()
    while warming.step():
        pass
    assert made == model.buckets.usual() and len(made) == len({*made})
    made.clear()
    assert texts(engine, requests(12)) == expected
    assert not made


def test_no_row_of_the_cache_is_touched(model: Model) -> None:
    engine = Engine(model)
    texts(engine, requests(3))
    states = {name: s.read(0, s.nbytes).copy() for name, s in engine._runner.states.items()}
    assert any(s.any() for s in states.values())
    warming = engine.warming()
    while warming.step():
        pass
    for name, s in engine._runner.states.items():
        np.testing.assert_array_equal(s.read(0, s.nbytes), states[name])


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(("n_seqs", "n_chunk"), [(1, 1), (1, 512), (5, 100), (16, 512), (128, 512)])
def test_those_that_a_batch_needs_as_it_fills_up(n_seqs: int, n_chunk: int, live: bool) -> None:
    sizes = Buckets(n_seqs, n_chunk, live)
    usual = sizes.usual()
    assert usual[0].n_tokens == (usual[0].n_chunk or 1) and len(usual) == len({*usual})
    at = {key: i for i, key in enumerate(usual)}
    n = 0
    while n < n_seqs:  # by four prompts a run, then without any
        m = min(n + 4, n_seqs)
        if m - n <= n_chunk:
            assert at[sizes.key(n, n_chunk, m, m, False, True)] < 26
        assert at[sizes.key(m, 0, m, m, False, True)] < 26
        n = m
    for rows in range(1, n_chunk + 1):  # somebody comes when somebody has left
        if n_seqs > 1:
            assert sizes.key(n_seqs - 1, rows, n_seqs, n_seqs, False, True) in at
        assert sizes.key(0, rows, 1, 1, False, True) in at


def test_a_front_makes_them_while_nobody_asks(model: Model, made: list[PlanKey]) -> None:
    expected = texts(Engine(model), requests(6))
    made.clear()

    async def main() -> list[list[int]]:
        engine = Engine(model)
        async with AsyncEngine(engine, warms=True) as front:

            async def text(r: Request) -> list[int]:
                return [t.id async for t in front.generate(r) if t.id is not None]

            async with asyncio.timeout(60):
                while len(made) < len(model.buckets.usual()):
                    await asyncio.sleep(0.01)
            return await asyncio.gather(*map(text, requests(6)))

    assert asyncio.run(main()) == expected
    assert made == model.buckets.usual()


def test_a_request_waits_for_a_part_of_one_at_most(
    monkeypatch: pytest.MonkeyPatch, model: Model
) -> None:
    """Plans are made part by part; none while somebody is there, or was a moment ago."""
    parts, begun, go_on = list[PlanKey](), threading.Event(), threading.Event()

    def make(self: Runner, key: PlanKey) -> None:
        parts.append(key)
        begun.set()
        assert go_on.wait(60)

    async def main() -> list[int]:
        found = []
        engine = Engine(model)
        async with AsyncEngine(engine, warms=True) as front:
            assert await asyncio.to_thread(begun.wait, 60)
            for i in range(3):
                stream = front.generate(Request([1, 2, 3 + i], 4))
                first = asyncio.ensure_future(anext(stream))
                while not engine.has_work:
                    await asyncio.sleep(0)
                go_on.set()
                await first
                await stream.aclose()
                found.append(len(parts))
            monkeypatch.setattr(aio, "REST", 0.001)
            front._wake.set()
            async with asyncio.timeout(60):
                while len(parts) < 2:
                    await asyncio.sleep(0.001)
        return found

    monkeypatch.setattr(aio, "REST", 60.0)
    monkeypatch.setattr(Runner, "make_ready", make)
    assert asyncio.run(main()) == [1, 1, 1]


def test_a_device_without_room_gets_no_more(monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
    def make(self: Runner, key: PlanKey) -> None:
        raise MemoryError("no room")

    engine = Engine(model)
    warming = engine.warming()
    with monkeypatch.context() as patch:
        patch.setattr(Runner, "make_ready", make)
        assert [warming.step() for _ in range(4)] == [True, True, False, False]
    assert not warming.step()
    assert texts(engine, requests(3)) == texts(Engine(model), requests(3))


def test_room_is_left_to_others(monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
    (device,) = model.backends.values()
    assert device.memory is not None
    monkeypatch.setattr(module, "LEAST_ROOM", device.memory.room()[0] + 1)
    engine = Engine(model)
    n = len(engine._runner._plans)
    assert not engine.warming().step()
    assert len(engine._runner._plans) == n
