"""Tiny ReLU models for tests, with predictors of another rank in each layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tiny_model import write_tiny

from gguflow.engine.gguf import GgufFile, write_gguf
from gguflow.engine.graph import F32
from gguflow.engine.model import Model

IDS = [1, 9, 17, 33, 40, 7, 7, 60]
N_FF, N_EMBD, N_LAYER = 96, 64, 2
RANKS = (12, 20)


def predictors(seed: int = 3) -> dict[str, np.ndarray]:
    """Random ones, of another rank in each layer."""
    rng = np.random.default_rng(seed)
    w = {}
    for i, r in enumerate(RANKS):
        w[f"blk.{i}.fc1.weight"] = rng.standard_normal((r, N_EMBD)).astype(np.float32)
        w[f"blk.{i}.fc2.weight"] = rng.standard_normal((N_FF, r)).astype(np.float32)
    return w


def write(path: Path, with_predictor: bool = True, **more: Any) -> Path:
    weights = {**(predictors() if with_predictor else {}), **more.pop("weights", {})}
    return write_tiny(path, "relullama", gain=2.0, weights=weights, **more)


def write_part(
    path: Path, source: Path, change: Mapping[str, np.ndarray | None], **keys: Any
) -> Path:
    """A copy of a file with some tensors left out (None) or replaced."""
    with GgufFile.open(source) as f:
        arrays: dict[str, Any] = {n: f.array(n) for n in f.tensors}
        arrays.update(change)
        tensors = {n: (F32, a.shape, a) for n, a in arrays.items() if a is not None}
        write_gguf(path, {**f.typed_metadata(), **keys}, tensors)
    return path


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


def run(path: Path, **options: Any) -> np.ndarray:
    """Logits; by the predictor unless another form is asked for."""
    return Model.load(path, n_threads=1, **{"sparse": "predict", **options}).logits(IDS)
