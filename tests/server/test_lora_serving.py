"""Adapters by request: by name as the model, or by factors; each has the text it gets alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_files import write_adapter
from serving import OPTIONS, Running, free_text

from gguflow.cli.load import bundled_model
from gguflow.engine.load import open_model
from gguflow.server.config import ModelSpec

BODY = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path, source = Path(bundled_model()), open_model(bundled_model())
    arch = source.metadata["general.architecture"]
    files = []
    for seed in (1, 2):
        rng, parts = np.random.default_rng(seed), {}
        for layer in range(4):
            name = f"blk.{layer}.attn_output.weight"
            n, k = source.weights[name].shape
            parts[f"{name}.lora_a"] = rng.standard_normal((4, k)).astype(np.float32) / k**0.5
            parts[f"{name}.lora_b"] = rng.standard_normal((n, 4)).astype(np.float32)
        where = tmp_path_factory.mktemp("lora") / f"style{seed}.gguf"
        files.append(str(write_adapter(where, parts, **{"general.architecture": arch})))
    options = replace(OPTIONS, lora=((files[0], 0.0), (files[1], 0.0)))
    spec = ModelSpec("tales", path, options, None, (("one", 1.0), ("two", 0.5)))
    running = Running([spec])
    yield running
    running.stop()


def text(server: Running, **more: Any) -> str:
    status, headers, answer = server.post(PATH, BODY | more)
    assert status == 200 and "warning" not in headers, answer
    return free_text(answer)


def test_an_adapter_is_named_as_the_model(adapted: Running, server: Running) -> None:
    plain = text(server)
    assert text(adapted) == text(adapted, model="tales") == plain  # loaded without being applied
    one, two = text(adapted, model="one"), text(adapted, model="two")
    assert len({plain, one, two}) == 3
    assert text(adapted, lora=[{"id": 0, "scale": 1.0}]) == one
    assert text(adapted, lora=[{"id": "two", "scale": 0.5}, {"id": 0, "scale": 0}]) == two
    assert text(adapted, lora=[]) == plain
    assert adapted.post(PATH, BODY | {"model": "one"})[2]["model"] == "one"
    # Prefixes are found among requests with the same factors alone.
    long = {"prompt": "The fox and the wolf went home. " * 30}
    for model, least in (("one", 0), ("two", 0), ("one", 128), ("tales", 0)):
        usage = adapted.post(PATH, BODY | long | {"model": model})[2]["usage"]
        found = usage["prompt_tokens_details"]["cached_tokens"]
        assert found >= least and (least or not found), (model, found)


def test_other_endpoints_know_them(adapted: Running) -> None:
    listed = {m["id"]: m.get("parent") for m in adapted.get("/v1/models")[2]["data"]}
    assert listed == {"tales": None, "one": "tales", "two": "tales"}
    assert adapted.get("/v1/models/two")[2]["parent"] == "tales"
    assert [(a["id"], a["name"], a["scale"]) for a in adapted.get("/lora-adapters")[2]] == [
        (0, "one", 0.0), (1, "two", 0.0)]  # fmt: skip
    vectors = [
        adapted.post("/v1/embeddings", {"input": "A king", "model": model})[2]["data"][0]
        for model in ("tales", "one", "two")
    ]
    assert len({tuple(v["embedding"]) for v in vectors}) == 3
    named = {"input": "A king", "lora": [{"id": 0, "scale": 1.0}]}
    assert adapted.post("/v1/embeddings", named)[2]["error"]["param"] == "lora"
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "model": "one"}
    assert adapted.post("/v1/chat/completions", chat)[2]["model"] == "one"
    answer = {"input": "Hi", "max_output_tokens": 3, "model": "two", "temperature": 0}
    both = [adapted.post("/v1/responses", answer | {"model": m})[2] for m in ("two", "tales")]
    assert both[0]["model"] == "two"
    assert both[0]["output"][0]["content"] != both[1]["output"][0]["content"]


@pytest.mark.parametrize(("more", "field"), [
    ({"lora": [{"id": 2, "scale": 1.0}]}, "lora.0.id"),
    ({"lora": [{"id": "three", "scale": 1.0}]}, "lora.0.id"),
    ({"lora": [{"id": 0, "scale": 1.0}, {"id": "one", "scale": 1.0}]}, "lora.1.id"),
    ({"lora": [{"id": 0}]}, "lora.0.scale"),
    ({"lora": [{"id": 0, "scale": 1e9}]}, "lora.0.scale"),
    ({"model": "one", "lora": []}, "lora"),
])  # fmt: skip
def test_adapters_that_cannot_be_had(adapted: Running, more: dict[str, Any], field: str) -> None:
    status, _, answer = adapted.post(PATH, BODY | more)
    assert status == 400 and answer["error"]["param"] == field, answer


def test_a_server_without_adapters(server: Running) -> None:
    status, _, answer = server.post(PATH, BODY | {"lora": [{"id": 0, "scale": 1.0}]})
    assert status == 400 and answer["error"]["param"] == "lora.0.id"
    assert server.get("/lora-adapters")[2] == []
    status, _, props = server.get("/props")
    assert status == 200 and props["total_slots"] == 8 and props["modalities"]["vision"] is False
    assert props["default_generation_settings"]["n_ctx"] == 512
