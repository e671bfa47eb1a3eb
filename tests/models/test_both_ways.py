"""Models that read prompts in both directions, against a transcription of LLaMA in float64 with
another mask: tokens of the prompt see all of it, later ones what stands before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import tiny_hparams, tiny_weights, write_tiny

from gguflow.engine.graph import F32
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.prompt import ContextError
from gguflow.engine.sampling import GREEDY
from gguflow.engine.serving.rows import WholePromptError
from gguflow.engine.serving.speculation import Speculation, SpeculationError
from gguflow.models.base import ModelError, architecture

IDS = [int(i) for i in np.random.default_rng(5).integers(5, 96, 40)]
EXACT: dict[str, Any] = {"n_threads": 1, "k_type": F32, "v_type": F32}


def llama(ids: list[int], n_prompt: int) -> np.ndarray:
    """Logits of the tiny LLaMA, float64 [n, n_vocab]."""
    hp = tiny_hparams("llama")
    w = {k: v.astype(np.float64) for k, v in tiny_weights(architecture("llama")(hp), 0, gain=2.0)
         .items()}  # fmt: skip
    n, hd = len(ids), hp.head_dim
    at = np.arange(n)
    mask = (at[:, None] >= at) | ((at[:, None] < n_prompt) & (at < n_prompt))
    angle = at[:, None, None] * hp.rope_base ** (-np.arange(0, hd, 2) / hd)

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + hp.norm_eps) * weight

    def turned(x: np.ndarray) -> np.ndarray:
        a, b = x[..., ::2], x[..., 1::2]
        pairs = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
        return np.stack(pairs, -1).reshape(x.shape)

    x = w["token_embd.weight"][ids]
    for i in range(hp.n_layer):
        b = {k.removeprefix(f"blk.{i}.").removesuffix(".weight"): v for k, v in w.items()}
        h = norm(x, b["attn_norm"])
        q, k, v = ((h @ b[f"attn_{t}"].T).reshape(n, -1, hd) for t in "qkv")
        k, v = (np.repeat(t, hp.n_head // hp.n_head_kv, 1) for t in (turned(k), v))
        s = np.einsum("ihd,jhd->hij", turned(q), k) / np.sqrt(hd)
        e = np.exp(np.where(mask, s, -np.inf))
        out = np.einsum("hij,jhd->ihd", e / e.sum(-1, keepdims=True), v)
        x = x + out.reshape(n, -1) @ b["attn_output"].T
        h = norm(x, b["ffn_norm"])
        gate = h @ b["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ b["ffn_up"].T)) @ b["ffn_down"].T
    return norm(x, w["output_norm.weight"]) @ w["output.weight"].T


def greedy(prompt: list[int], n: int) -> list[int]:
    ids = [*prompt]
    for _ in range(n):
        ids.append(int(llama(ids, len(prompt))[-1].argmax()))
    return ids[len(prompt) :]


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("m") / "m.gguf", gain=2.0, causal=False)


def test_the_transcription_is_llama(tmp_path: Path) -> None:
    model = Model.load(write_tiny(tmp_path / "c.gguf", gain=2.0), **EXACT)
    assert nmse(model.logits(IDS), llama(IDS, 0)) < 1e-9


@pytest.mark.parametrize("fuse", [True, False])
def test_logits(path: Path, fuse: bool) -> None:
    model = Model.load(path, **EXACT, fuse=fuse)
    assert nmse(model.logits(IDS), llama(IDS, len(IDS))) < 1e-9
    assert nmse(llama(IDS, 0), llama(IDS, len(IDS))) > 1e-2


@pytest.mark.parametrize("backends", [("cpu", "numpy"), ("numpy",)])
def test_generated_tokens_see_what_is_before_them(path: Path, backends: tuple[str, ...]) -> None:
    model = Model.load(path, **EXACT, backends=backends)
    for n in (1, 2, 9):
        assert list(model.session.generate(IDS[:n], 8, GREEDY)) == greedy(IDS[:n], 8)


@pytest.mark.parametrize("mode", ["tensor", "layer"])
def test_over_several_devices(path: Path, mode: Any) -> None:
    devices = ("simulated:0", "simulated:1")
    model = Model.load(path, **EXACT, backends=("numpy",), devices=devices, split_mode=mode)
    assert nmse(model.logits(IDS), llama(IDS, len(IDS))) < 1e-9
    assert list(model.session.generate(IDS[:9], 8, GREEDY)) == greedy(IDS[:9], 8)


def test_logits_of_generated_tokens(path: Path) -> None:
    session = Model.load(path, **EXACT).session
    session.prefill(IDS[:11], None)
    found = [session.step([i], "last")[0][0].copy() for i in IDS[11:]]
    assert nmse(np.array(found), llama(IDS, 11)[11:]) < 1e-9


def test_turns_of_one_session(path: Path) -> None:
    """What a prompt begins with was computed as another prompt, and is computed again."""
    model = Model.load(path, **EXACT)
    first = list(model.session.generate(IDS[:9], 4, GREEDY))
    longer = [*IDS[:9], *first, *IDS[9:12]]
    assert list(model.session.generate(longer, 6, GREEDY)) == greedy(longer, 6)
    one, two = model.session.generate(IDS[:9], 6, GREEDY), model.session.generate(longer, 6, GREEDY)
    both = [(a, b) for a, b in zip(one, two, strict=True)]
    assert [a for a, _ in both] == greedy(IDS[:9], 6)
    assert [b for _, b in both] == greedy(longer, 6)


def test_parts_of_prompts_are_refused(path: Path) -> None:
    model = Model.load(path, **EXACT, n_ubatch=16)
    with pytest.raises(ContextError, match="17 tokens: .* at most 16; raise `n_ubatch` and"):
        next(model.session.generate(IDS[:17], 2, GREEDY))
    assert len(list(model.session.generate(IDS[:16], 2, GREEDY))) == 2
    with pytest.raises(WholePromptError, match="1 tokens of a prompt after 16 others"):
        model.session.rewind(0)
        model.session.prefill(IDS[:17], None)
    with pytest.raises(WholePromptError):
        model.logits(IDS)


def test_drafts(path: Path, tmp_path: Path) -> None:
    causal = Model.load(write_tiny(tmp_path / "c.gguf", gain=2.0), **EXACT)
    both = Model.load(path, **EXACT)
    with pytest.raises(SpeculationError, match="a draft that reads prompts in both directions"):
        causal.speculate(Speculation(draft=both))
    both.speculate(Speculation(draft=causal))
    assert list(both.session.generate(IDS[:9], 12, GREEDY)) == greedy(IDS[:9], 12)


@pytest.mark.parametrize(
    ("arch", "changes", "what"),
    [
        ("llama", {"sliding_window": 8}, "sliding windows"),
        ("gemma3", {}, "sliding windows"),
        ("mpt", {}, "ALiBi"),
        ("bloom", {}, "ALiBi"),
        ("qwen3next", {}, "recurrent layers"),
    ],
)
def test_layers_without_such_a_form_are_refused(
    tmp_path: Path, arch: str, changes: dict[str, Any], what: str
) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, causal=False, **changes)
    with pytest.raises(ModelError, match=rf"m\.gguf: {arch}\.attention\.causal: false; {what} in"):
        open_model(path)


@pytest.mark.parametrize("arch", ["qwen2", "gpt2", "deepseek2", "mixtral"])
def test_other_families(tmp_path: Path, arch: str) -> None:
    """A token sees the ones after it; the last one of a prompt what it sees in one direction too,
    in the first layer."""
    name = "llama" if arch == "mixtral" else arch
    both = Model.load(write_tiny(tmp_path / "b.gguf", name, causal=False), **EXACT)
    one = Model.load(write_tiny(tmp_path / "c.gguf", name), **EXACT)
    assert not np.allclose(both.logits(IDS)[0], both.logits(IDS[:20])[0])
    assert np.allclose(one.logits(IDS)[0], one.logits(IDS[:20])[0], atol=1e-5)
    assert np.allclose(both.logits(IDS[:1]), one.logits(IDS[:1]), atol=1e-5)
