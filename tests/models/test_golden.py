"""stories260K, a trained model: its text and logits are llama.cpp's, whatever the settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguflow.engine.backends.cpu.native import runnable_isas
from gguflow.engine.graph import dtype_by_name
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.plan_key import step_key
from gguflow.engine.sampling import SamplerSettings

GREEDY = SamplerSettings(temperature=0.0)
N_NEW = 160

Load = Callable[..., Model]


@pytest.fixture(scope="module")
def golden(shared_data: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((shared_data / "stories260K.golden.json").read_text())[
        "rows"
    ]
    assert len(rows) == 3
    return rows


@pytest.fixture(scope="module")
def load(shared_data: Path) -> Load:
    @cache
    def loaded(**options: Any) -> Model:
        return Model.load(shared_data / "stories260K.gguf", Options(**{"n_threads": 1} | options))

    return loaded


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


def greedy(model: Model, prompt: list[int], n: int = N_NEW) -> list[int]:
    return list(model.new_session().generate(prompt, n, GREEDY))


def logits(model: Model, ids: list[int]) -> np.ndarray:
    return model.new_session().logits(ids)


@pytest.mark.parametrize("isa", [None, *runnable_isas()])
def test_greedy_text_and_logits(load: Load, golden: list[dict[str, Any]], isa: str | None) -> None:
    model = load(isa=isa, k_type=dtype_by_name("f32"), v_type=dtype_by_name("f32"))
    for row in golden:
        ids = model.tokenizer.encode(row["prompt"])
        assert ids == row["prompt_ids"]
        last = logits(model, ids)[-1]
        assert nmse(last, np.array(row["last_logits"], np.float32)) <= 1e-6
        assert greedy(model, ids) == row["greedy_ids"]


@pytest.mark.parametrize(("kv", "tolerance"), [("f16", 1e-6), ("bf16", 1e-4)])
def test_kv_cache_types(
    load: Load, golden: list[dict[str, Any]], kv: str, tolerance: float
) -> None:
    # Not q8_0: the model's heads have 8 values, no block of 32. test_architectures has it.
    model = load(k_type=dtype_by_name(kv), v_type=dtype_by_name(kv))
    for row in golden:
        last = logits(model, row["prompt_ids"])[-1]
        assert nmse(last, np.array(row["last_logits"], np.float32)) <= tolerance
        if kv == "f16":
            assert greedy(model, row["prompt_ids"]) == row["greedy_ids"]


@pytest.fixture(scope="module")
def long_ids(golden: list[dict[str, Any]]) -> list[int]:
    """A prompt of 165 tokens."""
    return golden[0]["prompt_ids"] + golden[0]["greedy_ids"]


@pytest.mark.parametrize(
    ("threads", "n_batch", "n_ubatch"),
    [(1, 2048, 1), (1, 2048, 7), (1, 512, 32), (2, 2048, 512), (2, 7, 7), (3, 2048, 512),
     (3, 64, 64), (2, 33, 512), (2, 512, 13)],
)  # fmt: skip
def test_the_same_bits_whatever_the_settings(
    load: Load, long_ids: list[int], threads: int, n_batch: int, n_ubatch: int
) -> None:
    model = load(n_threads=threads, n_batch=n_batch, n_ubatch=n_ubatch)
    assert model.options.n_ubatch == min(n_batch, n_ubatch)
    reference = load(n_threads=1)
    assert np.array_equal(logits(model, long_ids), logits(reference, long_ids))
    assert greedy(model, long_ids, 24) == greedy(reference, long_ids, 24)


def test_the_same_bits_token_by_token(load: Load, long_ids: list[int]) -> None:
    session = load().new_session()
    steps = [session.step([t], "last")[0][0].copy() for t in long_ids]
    assert np.array_equal(steps, logits(load(), long_ids))


def test_threads_for_prompts_do_not_matter(load: Load, long_ids: list[int]) -> None:
    model = load(n_threads=1, n_threads_batch=3)
    assert np.array_equal(logits(model, long_ids), logits(load(), long_ids))


def test_fusion_does_not_change_the_result(load: Load, long_ids: list[int]) -> None:
    plain = load(fuse=False)
    ops = [n.op for n in plain.plan(step_key(4, "last", False)).nodes]
    assert "mul_mat_swiglu" not in ops and "silu" in ops
    assert nmse(logits(load(), long_ids), logits(plain, long_ids)) <= 1e-10
    assert greedy(plain, long_ids, 24) == greedy(load(), long_ids, 24)
