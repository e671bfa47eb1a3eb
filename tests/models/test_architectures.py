"""Every architecture, tiny and random: native kernels against the numpy references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import USUAL, tiny_hparams, write_tiny

from gguflow.engine.graph import dtype_by_name
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.plan_key import step_key
from gguflow.models.base import architectures
from gguflow.models.batch import CacheLayer

TOLERANCE = 1e-3  # NMSE of a whole model's logits
IDS = [int(i) for i in np.random.default_rng(5).integers(0, 96, 40)]
YARN = {
    ".rope.scaling.type": "yarn",
    ".rope.scaling.factor": 4.0,
    ".rope.scaling.original_context_length": 16,
}

# What a file may have besides the plain configuration: arguments of write_tiny.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"optional": ()},
    "biases": {"optional": (*USUAL, "bias")},
    "freq-factors": {"optional": (*USUAL, "rope_freqs.weight")},
    "linear": {"keys": {".rope.scaling.type": "linear", ".rope.scaling.factor": 2.0}},
    "yarn": {"keys": YARN},
    "window": {"keys": {".attention.sliding_window": 8}},
    "head-24": {"head_dim": 24, "head_dim_v": 24, "rope_dims": 24},
    "head-v-32": {"head_dim": 16, "head_dim_v": 32},
    "rope-half": {"rope_dims": 8},
    "one-kv-head": {"n_head_kv": 1},
    "no-groups": {"n_head_kv": 4},
}


# All of them with these families, whose blocks differ most; a few with the others.
THOROUGH = ("llama", "qwen2", "qwen3", "relullama", "gemma2", "phi2")
BIASES = ("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_q_a.bias", "ssm_conv1d.bias")
FEW = ("plain", "biases", "window", "no-groups")
KV_TYPES = [("f16", 1e-5), ("bf16", 1e-3), ("q8_0", 1e-3)]


def some(values: Sequence[Any], arch: str) -> list[Any]:
    """Parameters (arch, value), of which a change waits for all with LLaMA, and with each other
    family for one, another from family to family; the rest are slow."""
    place = sorted(architectures()).index(arch)
    return [
        pytest.param(arch, v, id=f"{arch}-{v if isinstance(v, str) else v[0]}",
                     marks=[] if arch == "llama" or i == place % len(values) else pytest.mark.slow)
        for i, v in enumerate(values)
    ]  # fmt: skip


def arch_variants() -> list[Any]:
    """A change waits for each family plain, and with one of its other variants."""
    found: list[Any] = []
    for arch in sorted(architectures()):
        names = [v for v in (VARIANTS if arch in THOROUGH else FEW) if v != "plain"]
        found.append(pytest.param(arch, "plain", id=f"{arch}-plain"))
        found += some([v for v in names if (arch, v) != ("mamba2", "window")], arch)
    return found


ARCH_VARIANTS = arch_variants()


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


def run(path: Path, **options: Any) -> np.ndarray:
    """Logits of IDS, float32 [40, 96]."""
    return Model.load(path, Options(**{"n_threads": 1} | options)).logits(IDS)


@pytest.fixture(params=sorted(architectures()))
def arch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(("arch", "variant"), ARCH_VARIANTS)
def test_native_kernels_agree_with_the_references(arch: str, variant: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, gain=2.0, **VARIANTS[variant])
    expected = run(path, backends=("numpy",))
    assert 0.5 < expected.std() < 20  # far from uniform, and far from a single token
    assert nmse(run(path), expected) <= TOLERANCE
    assert nmse(run(path, fuse=False), expected) <= TOLERANCE


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "plain"])
def test_every_variant_changes_the_result(variant: str, tmp_path: Path) -> None:
    plain = run(write_tiny(tmp_path / "plain.gguf", gain=2.0))
    other = run(write_tiny(tmp_path / "other.gguf", gain=2.0, **VARIANTS[variant]))
    assert nmse(other, plain) > 1e-2


@pytest.mark.parametrize(("arch", "variant"), ARCH_VARIANTS)
def test_prefill_is_stepping(arch: str, variant: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, **VARIANTS[variant])
    model = Model.load(path, n_threads=1)
    session = model.new_session()
    steps = [session.step([t], "last")[0][0].copy() for t in IDS]
    assert np.array_equal(steps, model.logits(IDS))


def test_everything_runs_natively(arch: str, tmp_path: Path) -> None:
    model = Model.load(write_tiny(tmp_path / "m.gguf", arch))
    for n, sample in ((1, True), (5, False)):
        assert {s.backend for s in model.plan(step_key(n, "last", sample)).segments} == {"cpu"}


@pytest.mark.parametrize(
    ("arch", "kind"), [p for arch in sorted(architectures()) for p in some(KV_TYPES, arch)]
)
def test_kv_cache_types(arch: str, kind: tuple[str, float], tmp_path: Path) -> None:
    kv, tolerance = kind
    hp = tiny_hparams(arch)
    head: dict[str, Any] = {"head_dim": 32, "head_dim_v": 32, "rope_dims": 32}
    if hp.latent is not None:
        head = {"head_dim": 64, "rope_dims": 32, "latent": replace(hp.latent, head_dim=48)}
    if hp.experts is not None:  # all of them: another choice of experts is no rounding
        e = hp.experts
        head["experts"] = replace(e, n_used=e.n, n_group=1, n_group_used=1)
    path = write_tiny(tmp_path / "m.gguf", arch, **head)
    if not any(isinstance(open_model(path).arch.cache(i), CacheLayer) for i in range(hp.n_layer)):
        pytest.skip("no layer has keys and values")
    f32, dtype = dtype_by_name("f32"), dtype_by_name(kv)
    expected = run(path, k_type=f32, v_type=f32)
    assert 0 < nmse(run(path, k_type=dtype, v_type=dtype), expected) <= tolerance


def test_a_window_hides_what_is_before_it(tmp_path: Path) -> None:
    # With one layer, the last token's logits depend on the window's tokens alone.
    path = write_tiny(tmp_path / "m.gguf", n_layer=1, keys={".attention.sliding_window": 8})
    model = Model.load(path, n_threads=1)
    last = model.logits(IDS)[-1]
    before = [(t + 1) % 96 for t in IDS[:-8]]
    assert np.array_equal(model.logits(before + IDS[-8:])[-1], last)
    inside = [*IDS[:-8], (IDS[-8] + 1) % 96, *IDS[-7:]]
    assert not np.array_equal(model.logits(inside)[-1], last)


def test_an_absent_bias_is_a_bias_of_zeros(arch: str, tmp_path: Path) -> None:
    plain = write_tiny(tmp_path / "plain.gguf", arch)
    zeros = {
        spec.name: np.zeros(spec.shape, np.float32)
        for spec in open_model(plain).arch.weights()
        if spec.optional and spec.name.endswith(BIASES)
    }
    assert zeros
    path = write_tiny(tmp_path / "zeros.gguf", arch, weights=zeros)
    assert np.array_equal(run(path), run(plain))
