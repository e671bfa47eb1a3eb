"""Random models of every architecture: each op held to its reference on what it was given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_model import USUAL, write_tiny

from gguflow.engine.load import open_model
from gguflow.engine.options import Options
from gguflow.engine.verify import Settings, verify
from gguflow.models.base import architectures

TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")
CACHES = ("f32", "f16", "bf16", "q8_0")
TEXT = "".join(chr(ord("!") + i % 90) for i in range(0, 7 * 200, 7))


def check_random_model(seed: int, path: Path) -> None:
    """A file, cache types, sizes and threads all drawn by the seed."""
    rng = np.random.default_rng(seed)
    names = sorted(architectures())
    arch = names[seed % len(names)]
    dtype = str(rng.choice(TYPES))
    optional = tuple(o for o in (*USUAL, "bias") if rng.random() < 0.5)
    try:
        write_tiny(path, arch, seed=seed, optional=optional, gain=2.0, dtype=dtype)
    except ValueError:  # a matrix of it is no multiple of that type's block
        write_tiny(path, arch, seed=seed, optional=optional, gain=2.0, dtype="f16")
    source = open_model(path)
    hp = source.arch.hp
    blocks = hp.head_dim % 32 == 0 and hp.head_dim_v % 32 == 0
    caches = CACHES if blocks else CACHES[:-1]
    options = Options(
        n_threads=int(rng.integers(1, 4)),
        fuse=bool(rng.random() < 0.7),
        k_type=str(rng.choice(caches)),
        v_type=str(rng.choice(caches)),
    )
    settings = Settings(int(rng.integers(1, 50)), int(rng.integers(0, 4)), text=False)
    report = verify(source, options, TEXT, settings)
    assert report.ok, (arch, dtype, options, report.fault, report.checks)


@pytest.mark.parametrize("seed", range(2))
def test_random_models(seed: int, tmp_path: Path) -> None:
    check_random_model(seed, tmp_path / "m.gguf")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_two_hundred_random_models(seed: int, tmp_path: Path) -> None:
    check_random_model(seed, tmp_path / "m.gguf")
