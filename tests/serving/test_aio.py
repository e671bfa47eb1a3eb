"""The engine's asyncio front: tokens in order, readers that leave, bounds and failures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tiny_model import write_tiny

from gguflow.engine.model import Model
from gguflow.engine.prompt import ContextError
from gguflow.engine.sampling import GREEDY, SamplerSettings
from gguflow.engine.serving import aio
from gguflow.engine.serving.aio import AsyncEngine, EngineBusyError, EngineClosedError
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("m") / "m.gguf"
    return Model.load(write_tiny(path, gain=2.0, n_ctx_train=1024), n_threads=1)


def request(i: int, n: int = 20) -> Request:
    settings = SamplerSettings(temperature=1.5, seed=i) if i % 2 else GREEDY
    return Request([1 + i] * (5 + 7 * i), n, settings)


async def collect(engine: AsyncEngine, r: Request) -> list[int]:
    return [t.id async for t in engine.generate(r) if t.id is not None]


def test_requests_of_many_tasks(model: Model) -> None:
    async def main() -> list[list[int]]:
        async with AsyncEngine(Engine(model, n_seqs=4)) as engine:
            found = await asyncio.gather(*(collect(engine, request(i)) for i in range(10)))
            stats = engine.engine.stats
            assert stats.n_available == stats.n_pages
            return found

    found = asyncio.run(main())
    for i, tokens in enumerate(found):
        r = request(i)
        assert tokens == list(model.new_session().generate(r.ids, r.max_tokens, r.settings))


def test_tokens_of_many_are_told_together(monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
    """The first and the last at once, those between a few at a time, and none is lost."""
    monkeypatch.setattr(aio, "HOLD_FROM", 1)
    monkeypatch.setattr(aio, "HOLD_EACH", 1.0)
    monkeypatch.setattr(aio, "HOLD_MOST", 0.1)

    async def main() -> list[int]:
        async with AsyncEngine(Engine(model)) as engine:
            return [len(tokens) async for tokens in engine.batches(request(0, 60))]

    sizes = asyncio.run(main())
    assert sum(sizes) == 60 and len(sizes) < 30, sizes


def test_a_reader_that_leaves_cancels_its_request(model: Model) -> None:
    async def main() -> None:
        async with AsyncEngine(Engine(model, n_seqs=2)) as engine:
            stream = engine.generate(request(1, 900))
            for _ in range(3):
                await anext(stream)
            await stream.aclose()
            task = asyncio.create_task(collect(engine, request(2, 900)))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(await collect(engine, request(3))) == 20
            while engine.engine.has_work:
                await asyncio.sleep(0.01)
            stats = engine.engine.stats
            assert stats.n_generated < 900 and stats.n_available == stats.n_pages

    asyncio.run(asyncio.wait_for(main(), 60))


def test_more_requests_than_are_accepted(model: Model) -> None:
    async def main() -> None:
        async with AsyncEngine(Engine(model, n_seqs=2), most=2) as engine:
            streams = [engine.generate(request(i, 900)) for i in range(3)]
            for stream in streams[:2]:
                await anext(stream)
            with pytest.raises(EngineBusyError, match="2 requests"):
                await anext(streams[2])
            await streams[0].aclose()
            assert len(await collect(engine, request(1))) == 20
            with pytest.raises(ContextError):
                await collect(engine, Request([1] * 2000))
            with pytest.raises(ValueError, match="no tokens"):
                await collect(engine, Request([]))
            await streams[1].aclose()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_requests_of_an_engine_that_closes_or_fails(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def close() -> None:
        async with AsyncEngine(Engine(model, n_seqs=2)) as engine:
            stream = engine.generate(request(0, 900))
            await anext(stream)
        with pytest.raises(EngineClosedError, match="was closed"):
            async for _ in stream:
                pass
        with pytest.raises(EngineClosedError, match="was closed"):
            await collect(engine, request(0))

    async def fail() -> None:
        async with AsyncEngine(Engine(model, n_seqs=2)) as engine:
            stream = engine.generate(request(0, 900))
            await anext(stream)
            monkeypatch.setattr(engine.engine._runner, "run", None)
            with pytest.raises(EngineClosedError, match="a step failed: 'NoneType'"):
                async for _ in stream:
                    pass

    async def outside() -> None:
        with pytest.raises(EngineClosedError, match="async with"):
            await collect(AsyncEngine(Engine(model, n_seqs=2)), request(0))

    for case in (close, fail, outside):
        asyncio.run(asyncio.wait_for(case(), 60))
