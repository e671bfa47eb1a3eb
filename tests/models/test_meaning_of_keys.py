"""Keys that change the mathematics: obeyed, or refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.models.base import ModelError

IDS = [int(i) for i in np.random.default_rng(5).integers(0, 96, 40)]
YARN = {
    ".rope.scaling.type": "yarn",
    ".rope.scaling.factor": 4.0,
    ".rope.scaling.original_context_length": 16,
}


def logits(path: Path) -> np.ndarray:
    return Model.load(path, n_threads=1).logits(IDS)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "phi2", "gpt2"])
def test_attention_in_both_directions_is_obeyed(tmp_path: Path, arch: str) -> None:
    both = logits(write_tiny(tmp_path / "m.gguf", arch, keys={".attention.causal": False}))
    one = logits(write_tiny(tmp_path / "c.gguf", arch, keys={".attention.causal": True}))
    assert not np.allclose(both[0], one[0])
    assert np.array_equal(one, logits(write_tiny(tmp_path / "p.gguf", arch)))


def test_experts_without_their_tensors_are_refused(tmp_path: Path) -> None:
    keys = {".expert_count": 8, ".expert_used_count": 2}
    with pytest.raises(ModelError, match=r"tensor blk\.0\.ffn_gate_inp\.weight is missing"):
        open_model(write_tiny(tmp_path / "m.gguf", keys=keys))
    with pytest.raises(ModelError, match=r"qwen2\.expert_count: 8 experts|ffn_gate_inp"):
        open_model(write_tiny(tmp_path / "q.gguf", "qwen2", keys=keys))


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_windows_and_betas_of_a_file_are_obeyed(tmp_path: Path, arch: str) -> None:
    plain = logits(write_tiny(tmp_path / "p.gguf", arch, gain=2.0))
    window = logits(write_tiny(tmp_path / "w.gguf", arch, gain=2.0,
                               keys={".attention.sliding_window": 8}))  # fmt: skip
    assert np.array_equal(window[:8], plain[:8]) and not np.allclose(window[20:], plain[20:])
    yarn = logits(write_tiny(tmp_path / "y.gguf", arch, gain=2.0, keys=YARN))
    betas = YARN | {".rope.scaling.yarn_beta_fast": 8.0, ".rope.scaling.yarn_beta_slow": 0.25}
    assert not np.allclose(
        logits(write_tiny(tmp_path / "b.gguf", arch, gain=2.0, keys=betas)), yarn
    )


def test_keys_that_together_are_out_of_bounds_are_refused(tmp_path: Path) -> None:
    """Each is a float that the file may have; what is computed of them is none."""
    path = write_tiny(tmp_path / "m.gguf", "gemma2", keys={".final_logit_softcapping": 1e-45})
    with pytest.raises(ModelError, match=r"m\.gguf: its keys .*logits_scaled: scale: s=7.*e\+44"):
        Model.load(path, n_threads=1).logits(IDS)
