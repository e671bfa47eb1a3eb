"""Counting activations: the counts are those of the model's own gates; files are checked."""

from __future__ import annotations

import numpy as np
import pytest

from gguflow.cli.main import main
from gguflow.engine.gguf import GgufError, write_gguf
from gguflow.engine.graph import F32, I64
from gguflow.engine.model import Model
from gguflow.engine.plan_key import step_key
from gguflow.engine.taps import Taps, tapped
from gguflow.engine.variants.relu.identity import model_hash
from gguflow.engine.variants.relu.stats import (
    Activations,
    hottest,
    read_stats,
    write_stats,
)
from gguflow.engine.variants.relu.store import NoStatsError, check_stats, model_stats, stats_path
from gguflow.engine.variants.relu.tools.count import count_activations
from gguflow.models.base import ModelError

CHUNKS = [[1, 9, 17, 33, 40, 7, 7, 60, 5, 6], [1, 2, 3, 4, 5]]


def silu_free_forward(w: dict[str, np.ndarray], ids: list[int]) -> list[np.ndarray]:
    """Gates f32 [n, n_ff] by layer of the tiny model, in plain numpy."""
    n, hd, n_head, n_kv = len(ids), 16, 4, 2

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[name]

    def rope(x: np.ndarray) -> np.ndarray:  # [n, heads, hd], adjacent pairs
        angle = np.arange(n)[:, None] * 1e4 ** (-np.arange(hd // 2) * 2 / hd)
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        even, odd = x[..., ::2], x[..., 1::2]
        return np.stack([even * c - odd * s, even * s + odd * c], -1).reshape(x.shape)

    x = w["token_embd.weight"][ids]
    gates = []
    for i in range(2):
        b = f"blk.{i}"
        h = norm(x, f"{b}.attn_norm.weight")
        q = rope((h @ w[f"{b}.attn_q.weight"].T).reshape(n, n_head, hd))
        k = rope((h @ w[f"{b}.attn_k.weight"].T).reshape(n, n_kv, hd))
        v = (h @ w[f"{b}.attn_v.weight"].T).reshape(n, n_kv, hd)
        k, v = (np.repeat(t, n_head // n_kv, 1) for t in (k, v))
        score = np.einsum("qhd,khd->hqk", q, k) / 4 + np.triu(np.full((n, n), -np.inf), 1)
        p = np.exp(score - score.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", p, v).reshape(n, -1)
        x = x + out @ w[f"{b}.attn_output.weight"].T
        h = norm(x, f"{b}.ffn_norm.weight")
        gates.append(h @ w[f"{b}.ffn_gate.weight"].T)
        up = h @ w[f"{b}.ffn_up.weight"].T
        down = w.get(f"{b}.ffn_down_t.weight")
        x = x + (np.maximum(gates[-1], 0) * up) @ down
    return gates


def arrays(model: Model) -> dict[str, np.ndarray]:
    return {
        name: s.read().view(np.float32).reshape(s.shape).astype(np.float64)
        for name, s in model.source.weights.items()
    }


@pytest.mark.parametrize("n_ubatch", [1, 4, 64])
def test_counts_are_those_of_a_forward_pass_by_hand(write_relu, n_ubatch: int) -> None:
    model = Model.load(write_relu(), sparse="off", n_ubatch=n_ubatch, k_type=F32, v_type=F32)
    stats = count_activations(model, CHUNKS)
    w = arrays(model)
    by_hand = [np.concatenate(g) for g in zip(*(silu_free_forward(w, c) for c in CHUNKS),
                                              strict=True)]  # fmt: skip
    assert stats.n_tokens == 15
    for count, gate in zip(stats.counts, by_hand, strict=True):
        assert np.abs(gate).min() > 1e-5  # no gate so near zero that rounding decides
        np.testing.assert_array_equal(count, (gate > 0).sum(0))
    assert 0.2 < stats.active_fraction.mean() < 0.8


def test_tapping_leaves_the_model_as_it_is(write_relu) -> None:
    model = Model.load(write_relu(), sparse="off")
    before = model.logits(CHUNKS[0]).copy()
    count_activations(model, CHUNKS)
    np.testing.assert_array_equal(model.logits(CHUNKS[0]), before)


def test_relu_on_up_counts_where_both_fire(write_relu) -> None:
    model = Model.load(write_relu(keys={".relu_up": True}), sparse="off")
    names = [f"blk.{i}.ffn.{part}" for part in ("gate", "up") for i in range(2)]
    values = [[v.copy() for v in found] for found in tapped(model, names, CHUNKS)]
    for i, count in enumerate(count_activations(model, CHUNKS).counts):
        gate, up = (np.concatenate([v[k] for v in values]) > 0 for k in (i, 2 + i))
        np.testing.assert_array_equal(count, (gate & up).sum(0))
        assert 0 < count.sum() < gate.sum()


def test_an_unknown_tap_is_named(write_relu) -> None:
    model = Model.load(write_relu(), sparse="off")
    with pytest.raises(ModelError, match="the graph has no blk.0.ffn.nothing"):
        next(tapped(model, ["blk.0.ffn.nothing"], CHUNKS))


def test_taps_leave_earlier_outputs_behind_theirs(write_relu) -> None:
    """One after another, and when options change afterwards."""
    model = Model.load(write_relu(), sparse="exact")
    key = step_key(4, "all", False)
    for names in (("blk.0.ffn.norm",), ("blk.1.ffn.norm", "blk.1.attn.residual")):
        model = model.with_rewrite(Taps(names, ""))
    for changed in (model, model.with_options(n_threads=1), model.with_options(sparse="off")):
        found = [t.name for t in changed.graph(key).outputs]
        assert found == ["blk.1.ffn.norm", "blk.1.attn.residual", "blk.0.ffn.norm", "logits"]


def test_quantizations_share_a_hash_and_other_models_do_not(write_relu, tmp_path) -> None:
    path = write_relu()
    quantized = tmp_path / "q.gguf"
    assert main(["quantize", str(path), str(quantized), "Q8_0"]) == 0
    one, two = Model.load(path).source, Model.load(quantized).source
    assert model_hash(one) == model_hash(two)
    other = Model.load(write_relu(name="other.gguf", seed=3)).source
    assert model_hash(other) != model_hash(one)


def test_hottest_share() -> None:
    assert hottest(np.array([0.1, 0.7, 0.1, 0.1])) == 0.5
    assert hottest(np.array([0.8, 0.1, 0.1, 0.0])) == 0.25
    assert hottest(np.ones(10)) == 0.8
    assert hottest(np.zeros(3)) == 0.0


def some_stats() -> Activations:
    return Activations((np.array([0, 3, 5]), np.array([1, 1, 0])), 5, "ab" * 16)


def test_a_file_gives_back_what_was_written(tmp_path) -> None:
    path = tmp_path / "s.gguf"
    write_stats(path, some_stats())
    back = read_stats(path)
    assert (back.n_tokens, back.model_hash, back.hash) == (5, "ab" * 16, some_stats().hash)
    for a, b in zip(back.counts, some_stats().counts, strict=True):
        np.testing.assert_array_equal(a, b)
    assert back.probabilities[0].tolist() == [0, 0.6, 1.0]


@pytest.mark.parametrize(
    ("keys", "tensors", "message"),
    [
        ({"general.architecture": "llama"}, {}, "key general.architecture"),
        ({"activations.n_tokens": "x"}, {}, "activations.n_tokens"),
        ({"activations.n_tokens": 4}, {}, "blk.0.activations.*0 to 4"),
        ({}, {"blk.1.activations": None, "blk.7.activations": [1]}, "blk.1.activations"),
        ({}, {"blk.1.activations": [1]}, r"blk.1.activations.*\[1\]"),
        ({}, {"blk.0.activations": [-1, 0, 0]}, "0 to 5"),
        ({}, {"blk.0.activations": None, "blk.1.activations": None}, "tensors: found none"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, keys, tensors, message: str) -> None:
    path = tmp_path / "bad.gguf"
    values = {
        "general.architecture": "activations", "activations.model_hash": "00",
        "activations.n_tokens": 5,
    } | keys  # fmt: skip
    rows = {"blk.0.activations": [0, 3, 5], "blk.1.activations": [1, 1, 0]} | tensors
    data = {n: np.array(v, np.int64) for n, v in rows.items() if v is not None}
    write_gguf(path, values, {n: (I64, v.shape, v) for n, v in data.items()})
    with pytest.raises(GgufError, match=message) as e:
        read_stats(path)
    assert "bad.gguf" in str(e.value)


def test_kept_statistics_are_found_and_checked(write_relu, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GGUFLOW_CACHE_DIR", str(tmp_path / "cache"))
    model = Model.load(write_relu(), sparse="off")
    with pytest.raises(NoStatsError, match="gguflow sparse stats"):
        model_stats(model.source)
    stats = count_activations(model, CHUNKS)
    path = stats_path(stats.model_hash)
    path.parent.mkdir(parents=True)
    write_stats(path, stats)
    assert model_stats(model.source).hash == stats.hash
    other = Model.load(write_relu(name="other.gguf", seed=3)).source
    with pytest.raises(ModelError, match="statistics of another model"):
        check_stats(stats, other, "x")
