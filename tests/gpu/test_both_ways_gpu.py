"""Prompts read in both directions on the GPU: the CPU's logits, the same text in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.graph import F16, F32
from gguflow.engine.model import Model
from gguflow.engine.sampling import GREEDY
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request

pytestmark = pytest.mark.gpu

CUDA = ("cuda", "cpu", "numpy")
LONG = [int(i) for i in np.random.default_rng(0).integers(5, 96, 300)]
SIZES: dict[str, Any] = {"gain": 2.0, "n_ctx_train": 512, "causal": False}
HEADS = {"head_dim": 64, "head_dim_v": 64, "rope_dims": 64}  # of the tensor cores' kernels


@pytest.mark.parametrize("heads", [{}, HEADS])
@pytest.mark.parametrize("arch", ["llama", "gpt2", "deepseek2"])
def test_logits_are_the_cpus(gpu: Any, tmp_path: Path, arch: str, heads: dict[str, int]) -> None:
    if heads and arch != "llama":
        pytest.skip("sizes of their own")
    path = write_tiny(tmp_path / "m.gguf", arch, **SIZES, **heads)
    kv = F16 if heads else F32
    for n in (1, 40, 64, 65, 130, 300):
        one, other = (
            Model.load(path, backends=b, k_type=kv, v_type=kv).logits(LONG[:n])
            for b in (CUDA, ("cpu", "numpy"))
        )
        assert float(((one - other) ** 2).sum() / (other**2).sum()) < 1e-4


def test_each_gets_what_it_gets_alone(gpu: Any, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", **SIZES, **HEADS)
    model = Model.load(path, backends=CUDA, n_ctx=400, equal_bits=True)
    prompts = [LONG[:n] for n in (5, 1, 63, 64, 65, 64, 130, 200)]
    alone = [list(model.session.generate(p, 20, GREEDY)) for p in prompts]
    engine = Engine(model, n_seqs=5)
    for _ in range(2):
        found: dict[int, list[int]] = {engine.add(Request(p, 20, GREEDY)): [] for p in prompts}
        while engine.has_work:
            for token in engine.step():
                assert token.id is not None
                found[token.request].append(token.id)
        assert list(found.values()) == alone
    assert engine.stats.n_found == 0
