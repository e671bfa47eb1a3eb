"""Checkpoints with ReLU, against a transcription of transformers' LLaMA in float64 with the
activations that the models' own code has."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguflow.engine.convert import ConvertError, convert
from gguflow.engine.gguf import GgufFile
from gguflow.engine.graph import F32
from gguflow.engine.model import Model

DATA = Path(__file__).parent / "data"
IDS = [int(i) for i in np.random.default_rng(2).integers(0, 300, 24)]
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "relu", "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "max_position_embeddings": 64, "vocab_size": 300, "tie_word_embeddings": False,
}  # fmt: skip
RANK = 16


def weights(predictors: bool = False) -> dict[str, np.ndarray]:
    c, rng = CONFIG, np.random.default_rng(7)
    n, n_ff, kv = c["hidden_size"], c["intermediate_size"], 2 * c["head_dim"]
    found = {"model.embed_tokens.weight": (300, n), "lm_head.weight": (300, n),
             "model.norm.weight": (n,)}  # fmt: skip
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        found |= {f"{at}{x}.weight": (n,) for x in ("input_layernorm", "post_attention_layernorm")}
        for x, shape in (("q", (n, n)), ("k", (kv, n)), ("v", (kv, n)), ("o", (n, n))):
            found[f"{at}self_attn.{x}_proj.weight"] = shape
        for x, shape in (("gate", (n_ff, n)), ("up", (n_ff, n)), ("down", (n, n_ff))):
            found[f"{at}mlp.{x}_proj.weight"] = shape
        if predictors:
            found[f"{at}mlp.predictor.fc1.weight"] = (RANK, n)
            found[f"{at}mlp.predictor.fc2.weight"] = (n_ff, RANK)
    return {
        name: (rng.standard_normal(shape) * (2 * shape[-1] ** -0.5 if len(shape) > 1 else 0.1)
               + (len(shape) == 1)).astype(np.float32)
        for name, shape in found.items()
    }  # fmt: skip


def save(path: Path, tensors: dict[str, np.ndarray], **changes: Any) -> Path:
    path.mkdir()
    header, at = {}, 0
    for name, x in tensors.items():
        offsets = [at, at + x.nbytes]
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": offsets}
        at += x.nbytes
    text = json.dumps(header).encode()
    data = b"".join(x.tobytes() for x in tensors.values())
    (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    config = {k: v for k, v in (CONFIG | changes).items() if v is not None}
    (path / "config.json").write_text(json.dumps(config))
    shutil.copy(DATA / "llama" / "tokenizer.json", path)
    return path


Act = Callable[[np.ndarray], np.ndarray]


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def above(cut: float) -> Act:
    return lambda x: np.where(x > cut, x, 0)


def same(x: np.ndarray) -> np.ndarray:
    return x


def logits(w: dict[str, np.ndarray], gate_act: Act, up_act: Act, masked: bool) -> np.ndarray:
    """masked: neurons that the predictors find, of the layer's input before its norm."""
    c, n, hd = CONFIG, len(IDS), CONFIG["head_dim"]
    w = {k: v.astype(np.float64) for k, v in w.items()}
    angle = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, hd, 2) / hd)
    cos, sin = (np.concatenate([f(angle)] * 2, 1)[:, None] for f in (np.cos, np.sin))

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w[name]

    def turned(x: np.ndarray) -> np.ndarray:
        a, b = np.split(x, 2, -1)
        return x * cos + np.concatenate([-b, a], -1) * sin

    x = w["model.embed_tokens.weight"][IDS]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        h = norm(x, f"{at}input_layernorm.weight")
        q, k, v = ((h @ w[f"{at}self_attn.{t}_proj.weight"].T).reshape(n, -1, hd) for t in "qkv")
        k, v = (np.repeat(t, 2, 1) for t in (turned(k), v))
        s = np.einsum("ihd,jhd->hij", turned(q), k) / np.sqrt(hd)
        e = np.exp(np.where(np.tri(n, dtype=bool), s, -np.inf))
        out = np.einsum("hij,jhd->ihd", e / e.sum(-1, keepdims=True), v).reshape(n, -1)
        x = x + out @ w[f"{at}self_attn.o_proj.weight"].T
        h = norm(x, f"{at}post_attention_layernorm.weight")
        gate, up = (h @ w[f"{at}mlp.{t}_proj.weight"].T for t in ("gate", "up"))
        mid = gate_act(gate) * up_act(up)
        if masked:
            first = relu(x @ w[f"{at}mlp.predictor.fc1.weight"].T)
            mid = mid * (first @ w[f"{at}mlp.predictor.fc2.weight"].T > 0)
        x = x + mid @ w[f"{at}mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight") @ w["lm_head.weight"].T


def nmse(path: Path, expected: np.ndarray, sparse: str) -> float:
    model = Model.load(path, k_type=F32, v_type=F32, n_threads=1, sparse=sparse)  # type: ignore[arg-type]
    found = model.logits(IDS)
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


ACTS: dict[str, tuple[Act, Act]] = {
    "relu": (relu, same), "cut": (above(0.3), same), "both": (relu, relu),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "relu"),
        ({"architectures": ["MistralForCausalLM"]}, "relu"),
        ({"hidden_act": "fatrelu", "hidden_act_param": 0.3}, "cut"),
        ({"architectures": ["SparseLlamaForCausalLM"], "hidden_act": "fatrelu",
          "hidden_act_param": 0.3}, "cut"),
        ({"architectures": ["BambooForCausalLM"]}, "both"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("sparse", ["exact", "off"])
def test_logits(tmp_path: Path, changes: dict[str, Any], name: str, sparse: str) -> None:
    w = weights()
    convert(save(tmp_path / "m", w, **changes), tmp_path / "m.gguf", "f32")
    for other, acts in ACTS.items():
        found = nmse(tmp_path / "m.gguf", logits(w, *acts, False), sparse)
        assert found < 1e-9 if other == name else found > 1e-4


def test_predictors(tmp_path: Path) -> None:
    """TurboSparse's: what they do not find is nothing in its own code too."""
    w = weights(predictors=True)
    source = save(tmp_path / "m", w, architectures=["BambooForCausalLM"])
    convert(source, tmp_path / "m.gguf", "f32")
    with GgufFile.open(tmp_path / "m.gguf") as f:
        assert f.metadata["general.architecture"] == "relullama"
        assert f.metadata["relullama.relu_up"] is True
        assert f.tensors["blk.1.fc1.weight"].shape == (RANK, 32)
        assert f.tensors["blk.1.ffn_down_t.weight"].shape == (48, 32)
    assert nmse(tmp_path / "m.gguf", logits(w, relu, relu, True), "predict") < 1e-9
    assert nmse(tmp_path / "m.gguf", logits(w, relu, relu, False), "exact") < 1e-9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported: llama has silu or swish"),
        ({"hidden_act": "relu2"}, "hidden_act 'relu2' is not supported"),
        ({"hidden_act": "fatrelu"}, "hidden_act_param is None, expected a number from 0 on"),
        ({"hidden_act": "fatrelu", "hidden_act_param": -1}, "hidden_act_param is -1"),
        ({"hidden_act": "fatrelu", "hidden_act_param": True}, "hidden_act_param is True"),
        ({"hidden_act": "fatrelu", "hidden_act_param": float("nan")}, "hidden_act_param is nan"),
        ({"architectures": ["BambooForCausalLM"], "hidden_act": "silu"},
         "BambooForCausalLM with activation 'silu': expected relu"),
        ({"architectures": ["SparseLlamaForCausalLM"], "hidden_act": "silu"},
         "SparseLlamaForCausalLM with activation 'silu': expected fatrelu or relu"),
        ({"architectures": ["SparseLlamaForCausalLM"], "sparse_config": {"topk": 4}},
         "sparse_config is not supported"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "hidden_act 'relu' is not supported: qwen2 has"),
        ({"architectures": ["Phi3ForCausalLM"], "hidden_act": "fatrelu", "sliding_window": 8},
         "hidden_act 'fatrelu' is not supported: phi3 has silu"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConvertError, match=f"config.json: {message}"):
        convert(save(tmp_path / "m", weights(), **changes), tmp_path / "m.gguf")


def test_falcon(tmp_path: Path) -> None:
    """Falcon's checkpoint with ReLU, beside the same file that says it for itself."""
    for name, act in (("gelu", "gelu"), ("relu", "relu")):
        shutil.copytree(DATA / "falcon40", tmp_path / name)
        shutil.copy(DATA / "llama" / "tokenizer.json", tmp_path / name)
        config = json.loads((tmp_path / name / "config.json").read_text())
        (tmp_path / name / "config.json").write_text(json.dumps(config | {"activation": act}))
        convert(tmp_path / name, tmp_path / f"{name}.gguf", "f32")
    with GgufFile.open(tmp_path / "relu.gguf") as f, GgufFile.open(tmp_path / "gelu.gguf") as g:
        assert f.metadata["general.architecture"] == "relufalcon"
        down, other = f.array("blk.0.ffn_down_t.weight"), g.array("blk.0.ffn_down.weight")
        assert np.array_equal(down.T, other)
    ids = [i % 90 for i in IDS]
    found = [Model.load(tmp_path / f"{n}.gguf", n_threads=1).logits(ids) for n in ("relu", "gelu")]
    assert np.isfinite(found[0]).all() and not np.allclose(*found)
