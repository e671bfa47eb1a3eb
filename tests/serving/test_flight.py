"""Runs that nobody wants any more end in the middle, and what is left of them is as it was."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.cli.load import bundled_model
from gguflow.engine.interrupt import Cancelled
from gguflow.engine.model import Model
from gguflow.engine.sampling import GREEDY
from gguflow.engine.serving.aio import AsyncEngine, EngineClosedError
from gguflow.engine.serving.embed import Embedder
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import EmbedRequest, Request

LONG = [5 + i % 90 for i in range(48)]
SHORT = [7, 8, 9]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model.load(write_tiny(tmp_path / "m.gguf"), n_ctx=128, n_seqs=4, n_threads=2)


def asked(ids: list[int]) -> Request:
    return Request(ids, settings=GREEDY, max_tokens=5)


def tokens_of(engine: Engine, id: int) -> list[int | None]:
    """What one request gets, the others beside it."""
    out = []
    while engine.has_work:
        out += [t.id for t in engine.step() if t.request == id]
    return out


def cancelling(monkeypatch: pytest.MonkeyPatch, engine: Engine, ids: list[int]) -> list[bool]:
    """Cancels these as the next run is about to begin; then each run says whether it was ended."""
    run, ended = engine._runner.run, list[bool]()

    def told(*args: Any, **kw: Any) -> Any:
        while ids:
            engine.cancel(ids.pop())
        ended.append(True)
        result = run(*args, **kw)
        ended[-1] = False
        return result

    monkeypatch.setattr(engine._runner, "run", told)
    return ended


def test_a_prompt_that_nobody_waits_for(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(model)
    gone = engine.add(asked(LONG))
    ended = cancelling(monkeypatch, engine, [gone])
    assert engine.step() == [] and ended == [True]
    assert [t.finish for t in engine.step()] == ["cancel"] and not engine.has_work
    assert engine.stats.n_prompt == 0
    # Its pages hold nothing that others could find.
    after = engine.add(asked(LONG))
    again = Engine(model)
    assert tokens_of(engine, after) == tokens_of(again, again.add(asked(LONG)))
    assert engine.stats.n_found == 0


@pytest.mark.parametrize(
    ("stays", "is_ended"), [(SHORT, True), (LONG[1:] * 2, False)], ids=["short", "long"]
)
def test_those_beside_it_get_the_text_they_get_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch, stays: list[int], is_ended: bool
) -> None:
    """A run that is mostly theirs goes on; any other is made again without what is gone."""
    alone = Engine(model)
    expected = tokens_of(alone, alone.add(asked(stays)))
    engine = Engine(model)
    gone, stay = (engine.add(asked(ids)) for ids in (LONG, stays))
    ended = cancelling(monkeypatch, engine, [gone])
    assert tokens_of(engine, stay) == expected
    assert ended[0] == is_ended and not any(ended[1:])


def test_a_recurrent_state_is_not_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "r.gguf", "mamba2")
    model = Model.load(path, n_ctx=128, n_seqs=4, n_threads=2)
    alone = Engine(model)
    expected = tokens_of(alone, alone.add(asked(SHORT)))
    engine = Engine(model)
    gone, stay = (engine.add(asked(ids)) for ids in (LONG, SHORT))
    ended = cancelling(monkeypatch, engine, [gone])
    assert tokens_of(engine, stay) == expected and not any(ended)


def test_texts_for_vectors(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Engine(model)
    alone.add(EmbedRequest(SHORT, "mean"))
    expected = alone.step()[0].embedding
    engine = Engine(model)
    engine._embedder = Embedder(engine._runner, engine._flight)
    gone, stay = (engine.add(EmbedRequest(ids, "mean")) for ids in (LONG, SHORT))
    run, ended = engine._embedder._runner.run, list[bool]()

    def told(*args: Any, **kw: Any) -> Any:
        engine.cancel(gone)
        ended.append(True)
        result = run(*args, **kw)
        ended[-1] = False
        return result

    monkeypatch.setattr(engine._embedder._runner, "run", told)
    done = []
    while engine.has_work:
        done += engine.step()
    assert {t.request: t.finish for t in done} == {gone: "cancel", stay: "embedding"}
    assert ended == [True, False] and np.array_equal(done[-1].embedding, expected)


def test_native_code_is_left_within_an_op() -> None:
    """A prompt in one run: cancelled once the run is on its way, it ends without having counted."""
    model = Model.load(bundled_model(), n_ctx=512, n_seqs=1, n_ubatch=512, n_threads=2)
    prompt = [3 + i * 7 % 4000 for i in range(500)]
    for _ in range(50):  # others may have the processors until the run is over
        engine = Engine(model)
        id = engine.add(Request(prompt, max_tokens=2))
        thread = threading.Thread(target=engine.step)
        thread.start()
        while not engine._flight._rows and thread.is_alive():
            time.sleep(1e-4)
        engine.cancel(id)
        thread.join()
        if engine.stats.n_prompt == 0:
            break
    assert engine.stats.n_prompt == 0
    assert [t.finish for t in engine.step()] == ["cancel"]


def test_closing_ends_what_runs(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(model)

    async def main() -> None:
        async with AsyncEngine(engine) as front:
            reader = asyncio.create_task(anext(front.generate(asked(LONG))))
            await began.wait()
            await front.close()
            with pytest.raises(EngineClosedError):
                await reader

    run, ended = engine._runner.run, list[bool]()

    def told(*args: Any, **kw: Any) -> Any:
        loop.call_soon_threadsafe(began.set)
        while not engine._flight._over:
            time.sleep(1e-3)
        try:
            return run(*args, **kw)
        except Cancelled:
            ended.append(True)
            raise

    monkeypatch.setattr(engine._runner, "run", told)
    loop, began = asyncio.new_event_loop(), asyncio.Event()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    assert ended == [True] and engine.stats.n_prompt == 0
