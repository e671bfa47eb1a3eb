"""Whole models on the GPU: llama.cpp's text, the CPU's logits, and plans over both devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.compile.place import layer_overrides
from gguflow.engine.graph import F16, F32, dtype_by_name
from gguflow.engine.model import Model
from gguflow.engine.plan_key import step_key
from gguflow.engine.profile import Profile
from gguflow.engine.sampling import SamplerSettings

pytestmark = pytest.mark.gpu

GREEDY = SamplerSettings(temperature=0.0)
CUDA = ("cuda", "cpu", "numpy")
IDS = list(np.random.default_rng(0).integers(5, 96, 50))


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


def logits(path: Path, **options: Any) -> np.ndarray:
    return Model.load(path, **options).new_session().logits(IDS)


def test_greedy_text_is_llama_cpps(gpu: Any, shared_data: Path) -> None:
    rows = json.loads((shared_data / "stories260K.golden.json").read_text())["rows"]
    model = Model.load(shared_data / "stories260K.gguf", backends=CUDA, k_type=F32, v_type=F32)
    for row in rows:
        found = list(
            model.new_session().generate(row["prompt_ids"], len(row["greedy_ids"]), GREEDY)
        )
        assert found == row["greedy_ids"]


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kv", ["f32", "f16"])
def test_logits_are_the_cpus(gpu: Any, tmp_path: Path, arch: str, kv: str) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, seed=3, gain=2.0)
    types = {"k_type": dtype_by_name(kv), "v_type": dtype_by_name(kv)}
    expected = logits(path, n_threads=1, **types)
    assert nmse(logits(path, backends=CUDA, **types), expected) < 1e-4
    assert nmse(logits(path, backends=CUDA, n_ubatch=7, **types), expected) < 1e-4


def test_nothing_falls_back_to_the_cpu(gpu: Any, tmp_path: Path) -> None:
    model = Model.load(write_tiny(tmp_path / "m.gguf"), backends=CUDA)
    for n in (1, 33):
        plan = model.plan(step_key(n, "last", True))
        assert plan.placement.fallbacks == []
        assert [s.backend for s in plan.segments] == ["cuda:0"]


def test_sampled_text_is_the_cpus_and_the_same_every_time(gpu: Any, tmp_path: Path) -> None:
    """Sampling is exact on every backend; F32 weights keep the logits close enough."""
    path = write_tiny(tmp_path / "m.gguf", seed=5, gain=2.0)
    settings = SamplerSettings(temperature=0.8, seed=11, repeat_penalty=1.1)

    def text(backends: tuple[str, ...]) -> list[int]:
        model = Model.load(path, backends=backends, k_type=F32, v_type=F32)
        return list(model.new_session().generate([1, 9, 17], 40, settings))

    first = text(CUDA)
    assert first == text(CUDA)
    assert first == text(("cpu", "numpy"))


@pytest.mark.parametrize("n_gpu_layers", [0, 1, 2, 3])
def test_layers_may_be_split_over_both_devices(gpu: Any, tmp_path: Path, n_gpu_layers: int) -> None:
    path = write_tiny(tmp_path / "m.gguf", seed=6, gain=2.0)
    expected = logits(path, n_threads=1, k_type=F16, v_type=F16)
    overrides = layer_overrides(2, n_gpu_layers, "cuda")
    found = logits(path, backends=CUDA, overrides=overrides)
    assert nmse(found, expected) < 1e-4


def test_prefill_then_steps_equals_prefill(gpu: Any, tmp_path: Path) -> None:
    model = Model.load(write_tiny(tmp_path / "m.gguf", seed=7, gain=2.0), backends=CUDA)
    whole = model.new_session().logits(IDS)
    session = model.new_session()
    session.prefill(IDS[:20], None, "none")
    for i in range(20, len(IDS)):
        last = session.step((IDS[i],), "last")[0][0]
        assert nmse(last, whole[i]) < 1e-8


def test_a_profile_has_a_time_for_every_op(gpu: Any, tmp_path: Path) -> None:
    model = Model.load(write_tiny(tmp_path / "m.gguf"), backends=CUDA)
    profile = Profile()
    session = model.new_session(profile)
    session.prefill(IDS[:5], None)
    for t in IDS[5:9]:
        session.step((t,), "last")
    rows = [r for r in profile.rows() if r.op != "host"]
    assert {r.backend for r in rows} == {"cuda:0"}
    assert all(r.us >= 0 for r in rows) and sum(r.us for r in rows) > 0
    for step in profile.steps:
        mine = sum(r.us for r in profile.rows([step.step]))
        assert mine == pytest.approx(step.wall_us, rel=0.05)
