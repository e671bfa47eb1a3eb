"""Adapters for tests, as files and as values, and what a model is with their products added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tiny_model import metadata, tiny_hparams, tiny_weights

from gguflow.engine.gguf import write_gguf
from gguflow.engine.graph import F16, F32
from gguflow.engine.model import Model
from gguflow.engine.quants import encode
from gguflow.engine.sampling import SamplerSettings
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.models.base import architecture

IDS = [1, 10, 20, 30, 40, 50]
RANK, ALPHA = 4, 12.0
ADAPTER_KEYS = {
    "general.type": "adapter", "adapter.type": "lora", "general.architecture": "llama",
    "adapter.lora.alpha": ALPHA,
}  # fmt: skip


def write_model(path: Path, arch: str, values: dict[str, np.ndarray]) -> Path:
    model = architecture(arch)(tiny_hparams(arch))
    write_gguf(path, dict(metadata(model)), {n: (F32, a.shape, a) for n, a in values.items()})
    return path


def matrices(values: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Of the embeddings, the output head and every other matrix of the layers."""
    names = sorted(n for n, a in values.items() if a.ndim == 2)[seed::2]
    names += [n for n in ("token_embd.weight", "output.weight") if n not in names]
    found = {}
    for name in names:
        rng = np.random.default_rng([seed, *name.encode()])
        n, k = values[name].shape
        shapes = ((n, RANK), (k, RANK)) if name == "token_embd.weight" else ((RANK, k), (n, RANK))
        for kind, shape in zip("ab", shapes, strict=True):
            x = rng.standard_normal(shape) * 0.5 * shape[-1] ** -0.5
            found[f"{name}.lora_{kind}"] = x.astype(np.float16).astype(np.float32)
    return found


def write_adapter(path: Path, tensors: dict[str, np.ndarray], **keys: Any) -> Path:
    parts = {n: (F16, a.shape, encode(F16, a).view(np.uint8)) for n, a in tensors.items()}
    write_gguf(path, {**ADAPTER_KEYS, **keys}, parts)
    return path


def merged(
    values: dict[str, np.ndarray], tensors: dict[str, np.ndarray], scale: float
) -> dict[str, np.ndarray]:
    result = dict(values)
    for name in {n[: -len(".lora_a")] for n in tensors}:
        a, b = tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"]
        delta = a @ b.T if name == "token_embd.weight" else b @ a
        result[name] = (result[name] + scale * ALPHA / RANK * delta).astype(np.float32)
    return result


class Made:
    """A model and two adapters, as files and as values."""

    def __init__(self, path: Path) -> None:
        self.path = path
        model = architecture("llama")(tiny_hparams("llama"))
        self.values = tiny_weights(model)
        self.model = write_model(path / "m.gguf", "llama", self.values)
        self.adapters = [matrices(self.values, seed) for seed in (0, 1)]
        self.files = [
            str(write_adapter(path / f"a{i}.gguf", a)) for i, a in enumerate(self.adapters)
        ]

    def merged(self, *scales: float) -> Model:
        values = self.values
        for adapter, scale in zip(self.adapters, scales, strict=True):
            values = merged(values, adapter, scale)
        name = "-".join(map(str, scales))
        return Model.load(write_model(self.path / f"m{name}.gguf", "llama", values))


def nmse(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a - b) ** 2).sum() / (b**2).sum())


GREEDY = SamplerSettings(temperature=0)


def generated(engine: Engine, requests: list[Request]) -> list[list[int]]:
    ids = [engine.add(r) for r in requests]
    found: dict[int, list[int]] = {i: [] for i in ids}
    while engine.has_work:
        for token in engine.step():
            if token.id is not None:
                found[token.request].append(token.id)
    return [found[i] for i in ids]
