"""Writes tiny models with random weights, the same on every machine, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gguflow.engine.gguf import write_gguf
from gguflow.engine.graph import F32, dtype_by_name
from gguflow.engine.quants import encode
from gguflow.models.base import Architecture, HParams, WeightSpec, architecture
from gguflow.models.shapes import metadata

# Optional tensors a model has unless it is told otherwise.
USUAL = ("output.weight",)


def tiny_hparams(arch: str, **changes: Any) -> HParams:
    """The architecture's own test configuration, with changes."""
    return replace(architecture(arch).tiny(), **changes)


def tiny_weights(
    model: Architecture, seed: int = 0, optional: tuple[str, ...] = USUAL, gain: float = 1.0
) -> dict[str, np.ndarray]:
    """float32 arrays by name, each drawn from its own generator, seeded by seed and name.

    optional: optional tensors to make: those whose name is one of these or ends with one.
    gain: scales the matrices; 1 keeps activations of the size of their inputs.
    """
    n_ctx = model.hp.n_ctx_train  # where a file decides a length, one of positions
    return {
        spec.name: _draw(
            replace(spec, shape=tuple(n_ctx if n < 0 else n for n in spec.shape)), seed, gain
        )
        for spec in model.weights()
        if not spec.optional or spec.name.endswith(optional)
    }


def _draw(spec: WeightSpec, seed: int, gain: float) -> np.ndarray:
    x = np.random.default_rng([seed, *spec.name.encode()]).standard_normal(spec.shape)
    if spec.name == "rope_freqs.weight":
        x = 1 + 3 * np.abs(x)
    elif spec.name.endswith("norm.weight"):
        x = 1 + 0.2 * x
    elif spec.name.endswith("bias"):
        x = 0.3 * x
    elif spec.name.endswith("ssm_a"):
        x = -np.abs(x)  # a state decays
    elif spec.name == "token_embd.weight":
        x = 0.25 * x  # tied to the output, it makes logits of a few units
    else:
        x = gain * x * spec.shape[-1] ** -0.5
    return x.astype(np.float32)


def vocabulary(n_vocab: int) -> dict[str, Any]:
    """An SPM vocabulary: `<unk>`, BOS, EOS, newline, space, then printable characters from `!`."""
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "\u2581"]
    tokens += [chr(ord("!") + i) for i in range(n_vocab - len(tokens))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * n_vocab,
        "tokenizer.ggml.token_type": [2, 3, 3, 6] + [1] * (n_vocab - 4),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }


def write_tiny(
    path: Path,
    arch: str = "llama",
    *,
    seed: int = 0,
    optional: tuple[str, ...] = USUAL,
    gain: float = 1.0,
    keys: Mapping[str, Any] | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
    dtype: str = "f32",
    **changes: Any,
) -> Path:
    """Write a tiny model; returns `path`.

    dtype: element type of the matrices whose rows are whole blocks of it; all else is float32.
    keys: further metadata, `{arch}.` put before names that begin with a dot; None removes a key.
    weights: arrays that replace or join the drawn ones. changes: of the hyperparameters.
    """
    model = architecture(arch)(tiny_hparams(arch, **changes))
    arrays = tiny_weights(model, seed, optional, gain) | dict(weights or {})
    values: dict[str, Any] = dict(metadata(model)) | vocabulary(model.hp.n_vocab)
    for key, value in (keys or {}).items():
        full = f"{arch}{key}" if key.startswith(".") else key
        if value is None:
            del values[full]
        else:
            values[full] = value
    wanted = dtype_by_name(dtype)
    whole = {n for n, a in arrays.items() if a.ndim > 1 and a.shape[-1] % wanted.block == 0}
    types = {n: wanted if n in whole else F32 for n in arrays}
    tensors = {n: (types[n], a.shape, encode(types[n], a)) for n, a in arrays.items()}
    write_gguf(path, values, tensors)
    return path
