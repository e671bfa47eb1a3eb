"""Models that come and go: loaded when asked for, put away by age and for room."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from serving import Running
from tiny_model import write_tiny

from gguflow.engine.options import Options
from gguflow.server.config import ModelSpec
from gguflow.server.garbage import put_aside
from gguflow.server.manager import unique_names

TINY = Options(n_ctx=128, n_seqs=2, n_cache=256, n_threads=1)


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> list[ModelSpec]:
    folder = tmp_path_factory.mktemp("models")
    paths = [write_tiny(folder / f"m{i}.gguf", seed=i, gain=2.0) for i in range(3)]
    return [ModelSpec(f"m{i}", path, TINY) for i, path in enumerate(paths)]


@pytest.fixture
def started() -> Iterator[list[Running]]:
    found: list[Running] = []
    yield found
    for server in found:
        server.stop()


def ask(server: Running, model: str | None, **more: Any) -> tuple[int, dict[str, str], Any]:
    body = {"prompt": "abc", "max_tokens": 4, "temperature": 0, **more}
    return server.post("/v1/completions", body | ({"model": model} if model else {}))


def in_memory(server: Running) -> set[str]:
    return {m.spec.name for m in server.service.manager.loaded()}


def test_models_are_loaded_when_asked_for(started: list[Running], specs: list[ModelSpec]) -> None:
    server = Running(specs)
    started.append(server)
    assert in_memory(server) == {"m0"}
    texts = {ask(server, f"m{i}")[2]["choices"][0]["text"] for i in range(3)}
    assert in_memory(server) == {"m0", "m1", "m2"} and len(texts) == 3
    for name in (None, "", "default"):
        assert ask(server, name)[2]["model"] == "m0"
    status, _, answer = ask(server, "m9")
    assert status == 404 and answer["error"]["param"] == "model"
    listed = server.get("/v1/models")[2]["data"]
    assert [m["id"] for m in listed] == ["m0", "m1", "m2"] and all(m["loaded"] for m in listed)


def test_many_who_ask_at_once_load_it_once(started: list[Running], specs: list[ModelSpec]) -> None:
    opened: list[str] = []
    server = Running(specs)
    started.append(server)
    inner = server.service.manager._open
    server.service.manager._open = lambda spec: (opened.append(spec.name), inner(spec))[1]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ask(server, "m1")[2]["choices"][0]["text"], range(8)))
    assert opened == ["m1"] and len(set(found)) == 1


def test_the_longest_unused_makes_room(started: list[Running], specs: list[ModelSpec]) -> None:
    first = Running(specs[:1])
    started.append(first)
    one = first.loaded.nbytes
    server = Running(specs, memory=2 * one + one // 2)
    started.append(server)
    ask(server, "m1")
    ask(server, "m0")
    ask(server, "m2")
    assert in_memory(server) == {"m0", "m2"}
    # All of them at once, again and again: whoever has no room waits for some.
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda i: ask(server, f"m{i % 3}", n=2), range(18)))
    assert all(status == 200 for status, _, _ in found)
    assert sum(m.nbytes for m in server.service.manager.loaded()) <= server.config.memory


def test_a_model_that_never_fits(started: list[Running], specs: list[ModelSpec]) -> None:
    big = ModelSpec(
        "big", specs[1].path, Options(n_ctx=128, n_seqs=512, n_cache=65536, n_threads=1)
    )
    server = Running([specs[0], big], memory=8 << 20)
    started.append(server)
    status, _, answer = ask(server, "big")
    assert status == 400 and answer["error"]["code"] == "model_too_large"
    assert ask(server, None)[0] == 200


def test_models_nobody_asks_for_are_put_away(
    started: list[Running], specs: list[ModelSpec]
) -> None:
    server = Running(specs, idle=0.3)
    started.append(server)
    text = ask(server, None)[2]["choices"][0]["text"]
    end = time.monotonic() + 10
    while in_memory(server):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert ask(server, None)[2]["choices"][0]["text"] == text


def test_a_model_goes_though_it_was_put_aside_for_the_search_for_garbage(
    started: list[Running], specs: list[ModelSpec]
) -> None:
    server = Running(specs[:1], idle=0.3)
    started.append(server)
    model = server.loaded.model
    model.__dict__["itself"] = model  # nothing but a search finds it
    held = weakref.ref(model)
    del model
    put_aside()
    try:
        end = time.monotonic() + 10
        while in_memory(server) or held() is not None:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        gc.unfreeze()


def test_an_engine_that_fails_is_replaced(
    started: list[Running], specs: list[ModelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Running(specs)
    started.append(server)
    alone = ask(server, "m0")[2]["choices"]
    monkeypatch.setattr(server.loaded.engine.engine._runner, "run", None)
    status, _, answer = ask(server, "m0")
    assert status == 503 and "a step failed" in answer["error"]["message"]
    assert ask(server, "m1")[0] == 200
    # The next one who asks gets a new engine.
    status, _, answer = ask(server, "m0")
    assert status == 200 and answer["choices"] == alone


def test_names() -> None:
    paths = [Path("a/x.gguf"), Path("b/y.gguf"), Path("c/z.gguf")]
    assert unique_names(paths, ["one"]) == ["one", "y", "z"]
    with pytest.raises(ValueError, match="two models are called 'z'"):
        unique_names(paths, ["z"])
