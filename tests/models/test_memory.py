"""Peak resident memory: of generation file, KV cache and a constant; of quantizing a constant."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gguflow.engine.gguf import write_gguf
from gguflow.models.base import HParams, architecture
from gguflow.models.mixes import find_mix, tensor_type
from gguflow.models.shapes import metadata, random_bytes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status"),
]

N_CTX = 256
ALLOWED = 200 << 20  # bytes beside file and KV cache: Python, libraries, activations

PEAK = """
import re
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024)
"""
GENERATE = """
import sys
from gguflow.engine.model import Model
from gguflow.engine.sampling import SamplerSettings

model = Model.load(sys.argv[1], n_threads=2, n_ctx=int(sys.argv[2]))
made = list(model.session.generate([1, 2, 3] * 40, 4, SamplerSettings(temperature=0.0)))
assert len(made) == 4
print(sum(model.repacked_bytes().values()))
"""
QUANTIZE = """
import sys
from gguflow.cli.main import main

assert main(["quantize", sys.argv[1], sys.argv[2], "Q4_K_M", "-t", "2"]) == 0
"""


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where to put a large file, gone when the test ends."""
    yield tmp_path / "m.gguf"
    for file in tmp_path.glob("*.gguf"):
        file.unlink()


def write_model(path: Path, mix_name: str, n_layer: int) -> HParams:
    """A file of random weights; 11 million a layer."""
    hp = HParams(
        "llama", n_vocab=4096, n_ctx_train=2048, n_embd=1024, n_layer=n_layer, n_ff=2816, n_head=16,
        n_head_kv=4, head_dim=64, head_dim_v=64, norm_eps=1e-5, rope_dims=64, rope_base=1e4,
    )  # fmt: skip
    arch, mix = architecture("llama")(hp), find_mix(mix_name)
    tensors = []
    for spec in arch.weights():
        if not spec.optional or spec.name == "output.weight":
            dtype = tensor_type(mix, spec.name, spec.shape, n_layer, 4, tied=False)
            tensors.append((spec.name, dtype, spec.shape))
    write_gguf(
        path,
        dict(metadata(arch)),
        ((n, (d, s, random_bytes(n, s, d))) for n, d, s in tensors),
    )
    return hp


def run(code: str, *args: str) -> list[int]:
    """Numbers that `code` prints in a process of its own; the last is its peak memory in bytes."""
    command = [sys.executable, "-c", code + PEAK, *args]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(n) for n in done.stdout.split()]


@pytest.mark.parametrize(
    ("mix", "n_layer", "repacks"), [("Q4_0", 44, True), ("Q4_K_M", 40, True), ("F16", 14, False)]
)
def test_generation(path: Path, mix: str, n_layer: int, repacks: bool) -> None:
    hp = write_model(path, mix, n_layer)
    file = path.stat().st_size
    assert file > 250 << 20
    kv = 2 * 2 * hp.n_layer * N_CTX * hp.n_embd_kv
    repacked, peak = run(GENERATE, str(path), str(N_CTX))
    assert (repacked > 0.5 * file) is repacks  # else the test says nothing about it
    assert peak <= file + kv + ALLOWED, f"{(peak - file - kv) / 2**20:.0f} MiB beside file and KV"


def test_quantizing(path: Path) -> None:
    write_model(path, "F16", 24)
    assert path.stat().st_size > 500 << 20
    (peak,) = run(QUANTIZE, str(path), str(path.with_name("out.gguf")))
    assert peak <= 300 << 20, f"{peak / 2**20:.0f} MiB"
