"""Random ReLU shapes: as many neurons fire as planned, and the predictor knows which."""

from __future__ import annotations

import numpy as np
import pytest

from gguflow.engine.graph import dtype_by_name
from gguflow.engine.load.random import random_model
from gguflow.engine.quants import decode
from gguflow.models.base import HParams
from gguflow.models.planted import planted, probability

RANK = 64
HP = HParams(
    "relullama", n_vocab=1024, n_ctx_train=64, n_embd=512, n_layer=2, n_ff=3000, n_head=4,
    n_head_kv=4, head_dim=128, head_dim_v=128, norm_eps=1e-5, rope_dims=128, rope_base=1e4,
)  # fmt: skip


def tensor(name: str, shape: tuple[int, ...], dtype: str = "f16") -> np.ndarray:
    raw = planted(HP, RANK, name, shape, dtype_by_name(dtype))
    assert raw is not None
    return decode(dtype_by_name(dtype), raw, shape)


def layer(i: int, dtype: str = "f16") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, gates of 1024 tokens, and how probable each neuron is to fire."""
    x = tensor("token_embd.weight", (HP.n_vocab, HP.n_embd))
    fc1 = tensor(f"blk.{i}.fc1.weight", (RANK, HP.n_embd), dtype)
    fc2 = tensor(f"blk.{i}.fc2.weight", (HP.n_ff, RANK), dtype)
    gate = tensor(f"blk.{i}.ffn_gate.weight", (HP.n_ff, HP.n_embd))
    return np.maximum(x @ fc1.T, 0) @ fc2.T, x @ gate.T, probability(HP, i)


def share(p: np.ndarray) -> float:
    """What the hottest 26 % have of all activity."""
    return float(np.sort(p)[::-1][: int(0.26 * p.size)].sum() / p.sum())


@pytest.mark.parametrize("i", [0, 1])
def test_a_tenth_fires_and_few_neurons_have_most_of_it(i: int) -> None:
    scores, _, p = layer(i)
    fires = scores >= 0
    assert abs(p.mean() - 0.1) < 1e-3 and abs(share(p) - 0.8) < 1e-2
    assert abs(fires.mean() - 0.1) < 5e-3
    assert abs(share(fires.mean(0)) - 0.8) < 2e-2
    assert np.corrcoef(fires.mean(0), p)[0, 1] > 0.98
    assert fires.mean(1).std() < 0.03  # every token has about a tenth


def test_tokens_differ_and_layers_too() -> None:
    fires = layer(0)[0] >= 0
    again = (fires[1:] & fires[:-1]).sum() / fires[1:].sum()
    assert 0.4 < again < 0.6  # the hot ones: the sum of p^2 over that of p is about a half
    hot = [set(np.flatnonzero(probability(HP, i) > 0.5)) for i in (0, 1)]
    assert len(hot[0] & hot[1]) < 0.3 * len(hot[0])
    runs = np.diff(np.sort(list(hot[0]))) == 1
    assert runs.mean() < 0.15  # not side by side


@pytest.mark.parametrize(("dtype", "agree"), [("f16", 0.9995), ("q8_0", 0.999), ("q5_0", 0.99)])
def test_predictor_and_gate_agree(dtype: str, agree: float) -> None:
    scores, gates, _ = layer(0, dtype)
    assert ((scores >= 0) == (gates > 0)).mean() >= agree


def test_a_named_shape_is_made_of_them() -> None:
    source = random_model("relu-tinyllama-1.1b:Q4_0")
    w = source.weights
    assert w["blk.3.fc1.weight"].shape == (128, 2048)
    assert w["blk.3.fc2.weight"].shape == (5632, 128)
    assert {w[f"blk.3.{p}.weight"].dtype.name for p in ("fc1", "fc2")} == {"q5_0"}
    assert w["blk.3.ffn_down_t.weight"].dtype.name == "q4_0"
    for name in ("blk.3.fc2.weight", "blk.3.ffn_gate.weight", "blk.3.ffn_down_t.weight"):
        assert w[name].read().size == w[name].shape[0] * w[name].dtype.row_bytes(w[name].shape[1])
    assert source.activity is not None
    assert abs(np.mean(source.activity()) - 0.1) < 1e-3
