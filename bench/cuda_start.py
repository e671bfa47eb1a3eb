"""Where the time from process start to the first token goes.

    python bench/cuda_start.py [--shape llama3.2-1b:Q4_0] [--device cuda|cpu] [--runs 3] [--file F]

Writes a model of the shape with random weights and a vocabulary of the Llama 3 kind to a temporary
file, or to F and leaves it there; then runs the whole start in new processes, the first of which
fills the caches (of kernels, of the file's pages). Each prints milliseconds by phase; the first
phase begins when the process does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

N_BYTES, N_MERGES = 256, 280_147


def process_age() -> float:
    """Seconds since the process began, from the system's clocks."""
    with open("/proc/self/stat") as f:
        started = int(f.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


class Phases:
    """Prints how long each phase took."""

    def __init__(self) -> None:
        self.age = process_age()
        self.last = time.perf_counter()
        print(f"    {self.age * 1e3:9.1f} ms  interpreter")

    def end(self, name: str) -> None:
        now = time.perf_counter()
        print(f"    {(now - self.last) * 1e3:9.1f} ms  {name}", flush=True)
        self.age += now - self.last
        self.last = now


def start(path: str, device: str) -> None:
    """One start, phase by phase: what `gguflow generate -ngl all` does, in its order."""
    phases = Phases()
    import numpy as np

    phases.end("import numpy")
    from gguflow.engine.load import open_model
    from gguflow.engine.model import Model
    from gguflow.engine.options import Options
    from gguflow.engine.sampling import SamplerSettings

    phases.end("import gguflow")
    source = open_model(path)
    phases.end("open the file")
    backend: Any = None
    if device == "cuda":
        import cupy  # noqa: F401

        phases.end("import cupy")
        from cuda.bindings import driver  # noqa: F401

        phases.end("import driver bindings")
        from gguflow.engine.backends.base import find_backend
        from gguflow.kernels.cuda import jit, launch

        launch.launch_files()
        phases.end("import launch files")
        backend = find_backend("cuda")
        backend.device.synchronize()
        phases.end("open the device")
        jit.compiler_version()
        phases.end("load NVRTC for its version")
    model = Model(source, Options(n_ctx=4096, n_gpu_layers=-1 if device == "cuda" else 0))
    phases.end("model, with the forecast's plans")
    ids = model.tokenizer.encode("The quick brown fox jumps over the lazy dog.")
    phases.end("tokenizer")
    model.load_weights()
    if device == "cuda":
        model.backends["cuda:0"].device.synchronize()  # type: ignore[attr-defined]
    phases.end("weights")
    session = model.new_session()
    phases.end("session: KV cache and arena")
    bound = session.bound_plan(len(ids), "last", True)
    phases.end("prompt's plan: kernels from the cache")
    tokens = session.generate(ids, 16, SamplerSettings(temperature=0.0))
    next(tokens)
    phases.end("first token")
    print(f"    {phases.age * 1e3:9.1f} ms  in all, of {len(bound.plan.nodes)} ops", flush=True)
    next(tokens)
    phases.end("second token: decode plan, capture")
    next(tokens)
    phases.end("third token")
    assert len(np.array(list(tokens))) == 13


def vocabulary(shape: str) -> dict[str, Any]:
    """Keys of a byte-level vocabulary with as many tokens and merges as Llama 3's."""
    import numpy as np

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(N_BYTES) if b not in printable]
    chars = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    tokens = [chars[b] for b in range(N_BYTES)]
    known, merges = set(tokens), []
    rng = np.random.default_rng(0)
    from gguflow.models.shapes import SHAPES

    n_vocab = SHAPES[shape.partition(":")[0]][0].n_vocab
    while len(tokens) < n_vocab:
        a, b = (tokens[int(i)] for i in rng.integers(0, min(len(tokens), 60_000), 2))
        if a + b not in known and len(a + b) < 24:
            known.add(a + b)
            tokens.append(a + b)
            merges.append(f"{a} {b}")
    ways = ((t[:i], t[i:]) for t in tokens for i in range(1, len(t)))  # to make a token
    seen = set(merges)
    also = (f"{a} {b}" for a, b in ways if a in known and b in known)
    merges += islice((m for m in also if m not in seen), N_MERGES - len(merges))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.ones(n_vocab, np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": n_vocab - 2,
        "tokenizer.ggml.eos_token_id": n_vocab - 1,
    }


def write(path: Path, shape: str) -> None:
    """The model file."""
    from gguflow.engine.gguf import write_gguf
    from gguflow.models.shapes import metadata, parse_shape, random_bytes

    arch, tensors = parse_shape(shape)
    write_gguf(
        path,
        dict(metadata(arch)) | vocabulary(shape),
        ((n, (d, s, random_bytes(n, s, d))) for n, s, d in tensors),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="llama3.2-1b:Q4_0")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--file")
    parser.add_argument("--start", metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.start:
        return start(args.start, args.device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(args.file or Path(folder) / "model.gguf")
        if not path.exists():
            write(path, args.shape)
        for i in range(args.runs):
            print(f"run {i} of {args.shape}, {path.stat().st_size / 1e9:.2f} GB", flush=True)
            command = [sys.executable, __file__, "--start", str(path), "--device", args.device]
            began = time.perf_counter()
            subprocess.run(command, check=True)
            print(f"    {(time.perf_counter() - began) * 1e3:9.1f} ms  the process", flush=True)


if __name__ == "__main__":
    main()
