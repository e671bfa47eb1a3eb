"""The families whose own implementation's logits the tests have: see tests/data/README.md."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np

ARCHIVE = Path(__file__).parent / "data" / "architectures.tar.xz"
FAMILIES = (
    "llama", "llama31", "llama-bias-tied", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3",
    "gemma3", "granite", "olmo2", "smollm3", "ernie45", "glm4", "phi2", "falcon", "falcon40",
    "cohere2", "stablelm", "starcoder2", "gpt2", "bloom", "mpt", "mixtral", "qwen2moe", "qwen3moe",
    "olmoe", "granitemoe", "glm4moe", "gpt-oss", "deepseek2", "qwen3next", "qwen35", "qwen35moe",
    "mamba2",
)  # fmt: skip


def unpack(to: Path) -> Path:
    """All files, in a directory."""
    with tarfile.open(ARCHIVE) as t:
        t.extractall(to, filter="data")
    return to


def reference(directory: Path, family: str) -> tuple[Path, list[int], np.ndarray]:
    """The file, token ids, and logits float32 [n, n_vocab]."""
    with np.load(directory / f"{family}.npz") as z:
        return directory / f"{family}.gguf", z["ids"].tolist(), z["logits"]
