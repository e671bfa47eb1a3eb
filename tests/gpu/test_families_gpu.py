"""Every family on the GPU: the reference files' logits, and the CPU's for tiny random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_families import FAMILIES, reference
from tiny_model import write_tiny

from gguflow.engine.graph import F32, dtype_by_name
from gguflow.engine.model import Model
from gguflow.engine.plan_key import step_key
from gguflow.models.base import architectures

pytestmark = pytest.mark.gpu

CUDA = ("cuda", "cpu", "numpy")
IDS = [int(i) for i in np.random.default_rng(0).integers(5, 96, 50)]


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


@pytest.mark.parametrize("n_ubatch", [64, 1, 7])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_publishers(
    gpu: Any, architectures_data: Path, family: str, n_ubatch: int
) -> None:
    path, ids, expected = reference(architectures_data, family)
    model = Model.load(path, backends=CUDA, k_type=F32, v_type=F32, n_ubatch=n_ubatch)
    assert nmse(model.logits(ids), expected) <= 1e-4


@pytest.mark.parametrize("arch", sorted(architectures()))
def test_logits_are_the_cpus(gpu: Any, tmp_path: Path, arch: str) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, seed=3, gain=2.0)
    types = {"k_type": F32, "v_type": F32}
    expected = Model.load(path, n_threads=1, **types).logits(IDS)
    for n_ubatch in (64, 7):
        model = Model.load(path, backends=CUDA, n_ubatch=n_ubatch, **types)
        assert nmse(model.logits(IDS), expected) < 1e-4


@pytest.mark.parametrize("arch", sorted(architectures()))
def test_what_falls_back(gpu: Any, tmp_path: Path, arch: str) -> None:
    model = Model.load(write_tiny(tmp_path / "m.gguf", arch), backends=CUDA)
    for n in (1, 33):
        assert model.plan(step_key(n, "last", True)).placement.fallbacks == []


DENSE = ["falcon", "gemma3", "gptneox", "phi3", "qwen2", "qwen3", "qwen35", "starcoder2"]


@pytest.mark.parametrize(
    "arch, dtype", [*((a, "f16") for a in sorted(architectures())), *((a, "q8_0") for a in DENSE)]
)
def test_single_tokens(gpu: Any, tmp_path: Path, arch: str, dtype: str) -> None:
    """Of weights for which a product takes along what stands around it."""
    path = write_tiny(tmp_path / "m.gguf", arch, seed=3, dtype=dtype)
    types = {"k_type": F32, "v_type": F32}
    expected = Model.load(path, backends=("numpy",), **types).logits(IDS[:12])
    model = Model.load(path, backends=CUDA, n_ubatch=1, **types)
    assert nmse(model.logits(IDS[:12]), expected) < (1e-4 if dtype == "f16" else 1e-2)


@pytest.mark.parametrize("dtype", ["q4_0", "q8_0"])
@pytest.mark.parametrize("arch", ["qwen3moe", "deepseek2"])
def test_quantized_experts(gpu: Any, tmp_path: Path, arch: str, dtype: str) -> None:
    assert dtype_by_name(dtype).block == 32
    path = write_tiny(tmp_path / "m.gguf", arch, seed=3, dtype=dtype)
    expected = Model.load(path, n_threads=1, backends=("numpy",)).logits(IDS)
    assert nmse(Model.load(path, backends=CUDA).logits(IDS), expected) < 1e-2
