"""Every environment variable gguflow reads, typed, in one place.

| variable | values | meaning |
|---|---|---|
| GGUFLOW_API_KEY | text | a key of `gguflow serve`, besides those of its file |
| GGUFLOW_CACHE_DIR | directory | repacked weights, GPU kernels, what was measured of ReLU models |
| GGUFLOW_CPU_ISA | baseline, avx2, avx512, avx512bf16, amx, dotprod, i8mm | use this CPU library |
| GGUFLOW_CPU_PIN | 0, 1 | pin worker threads (default 1); of several processes the first does |
| GGUFLOW_CPU_SPIN | turns | an idle worker spins so long before it sleeps (default 1000) |
| GGUFLOW_CUDA_LINES | 0, 1 | GPU kernels name their source lines to tools (default 0) |
| GGUFLOW_DEBUG | 0, 1 | show tracebacks, as --debug does |
| GGUFLOW_LINK | 0, 1 | run the host's and the device's part of a plan side by side (default 1) |
| GGUFLOW_WEIGHT_CACHE | GiB | most that repacked weights take on the disk (default 16); 0: none |
| LLAMA_CACHE | directory | where llama.cpp keeps models (~/.cache/llama.cpp) |
| OLLAMA_MODELS | directory | where ollama keeps models (~/.ollama/models) |
| XDG_CACHE_HOME | directory | where caches are, gguflow's too unless told otherwise (~/.cache) |
"""

from __future__ import annotations

import os
from pathlib import Path


class EnvError(ValueError):
    """An environment variable with a value that cannot be used."""


def _int(name: str, default: int, least: int, most: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise EnvError(f"{name}={text}: expected a whole number from {least} to {most}")
    return value


def api_key() -> str:
    """A key that requests to the server may have; "" for none."""
    return os.environ.get("GGUFLOW_API_KEY", "").strip()


def cache_dir() -> Path:
    """Where repacked weights, compiled GPU kernels and files of sparse models are kept; it need not
    exist."""
    if chosen := os.environ.get("GGUFLOW_CACHE_DIR", "").strip():
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "").strip()  # XDG base directory specification
    return (Path(base) if base else Path.home() / ".cache") / "gguflow"


def ollama_dir() -> Path:
    """Where ollama keeps its models; it need not exist."""
    chosen = os.environ.get("OLLAMA_MODELS", "").strip()
    return Path(chosen).expanduser() if chosen else Path.home() / ".ollama" / "models"


def llama_cache_dir() -> Path:
    """Where llama.cpp keeps models it has fetched; it need not exist."""
    if chosen := os.environ.get("LLAMA_CACHE", "").strip():
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(base) if base else Path.home() / ".cache") / "llama.cpp"


def cpu_isa() -> str | None:
    """The CPU library asked for, or None for the best this machine runs."""
    return os.environ.get("GGUFLOW_CPU_ISA", "").strip().lower() or None


def cpu_pin() -> bool:
    """Whether workers are pinned to processors."""
    return bool(_int("GGUFLOW_CPU_PIN", 1, 0, 1))


def cpu_spin() -> int:
    """Turns of the wait loop before an idle worker parks."""
    return _int("GGUFLOW_CPU_SPIN", 1_000, 0, 1_000_000_000)


def cuda_lines() -> bool:
    """Whether GPU kernels are compiled with the lines that their code comes from."""
    return bool(_int("GGUFLOW_CUDA_LINES", 0, 0, 1))


def weight_cache_bytes() -> int:
    """Most bytes that repacked weights may take on the disk; 0 to keep none."""
    return _int("GGUFLOW_WEIGHT_CACHE", 16, 0, 1 << 20) << 30


def check() -> None:
    """Raises EnvError for a variable that cannot be used, before work is done."""
    cpu_pin(), cpu_spin(), cuda_lines(), debug(), link(), weight_cache_bytes()


def debug() -> bool:
    """Whether errors should show a traceback."""
    return bool(_int("GGUFLOW_DEBUG", 0, 0, 1))


def link() -> bool:
    """Whether plans over the host and a device are linked."""
    return bool(_int("GGUFLOW_LINK", 1, 0, 1))
