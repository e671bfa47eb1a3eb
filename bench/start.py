"""From the start of a process to the first token, by phase.

    python bench/start.py
    python bench/start.py --random llama3.2-1b:Q4_0 --vocab ggml-vocab-llama-bpe.gguf

Of the bundled model, or of a shape with random weights and a file's vocabulary. Each start is a
process of its own; the first one keeps repacked weights, the others find them. Of CPU milliseconds
the least of all starts, which other work on the machine changes little; of those by the clock the
median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROMPT = "Once upon a time"
PHASES = ("numpy", "engine", "open", "plans", "weights", "tokenizer", "first token")


def one_start(path: str | None, keep: bool) -> None:
    """Run to the first token; prints the phases as JSON, [CPU, wall] seconds each."""
    found: dict[str, list[float]] = {}
    last = [time.process_time(), time.perf_counter()]

    def phase(name: str) -> None:
        now = [time.process_time(), time.perf_counter()]
        found[name] = [b - a for a, b in zip(last, now, strict=True)]
        last[:] = now

    from gguflow.start import rest_idle_threads

    rest_idle_threads()
    import numpy  # noqa: F401

    phase("numpy")
    from gguflow.engine.load import open_model
    from gguflow.engine.load.bundled import bundled_model
    from gguflow.engine.model import Model
    from gguflow.engine.options import Options

    phase("engine")
    source = open_model(path or bundled_model())
    phase("open")
    n_ctx = min(4096, source.arch.hp.n_ctx_train)
    model = Model(source, Options(n_ctx=n_ctx, weight_cache=keep))
    phase("plans")
    model.load_weights()
    phase("weights")
    ids = model.tokenizer.encode(PROMPT)
    phase("tokenizer")
    next(iter(model.generate(ids, max_tokens=1)))
    phase("first token")
    print(json.dumps(found))


def starts(path: str | None, n: int, keep: bool, env: dict[str, str]) -> None:
    """Print the least CPU time and the median by the clock of `n` starts."""
    command = [sys.executable, __file__, "--one", *(["--file", path] if path else [])]
    runs, walls = [], []
    for _ in range(n):
        began = time.perf_counter()
        out = subprocess.run(
            command + ([] if keep else ["--no-keep"]), env=env, check=True, capture_output=True
        )
        walls.append(time.perf_counter() - began)
        runs.append(json.loads(out.stdout))
    for name in PHASES:
        cpu, wall = ([r[name][k] * 1e3 for r in runs] for k in (0, 1))
        print(f"  {name:<12} {min(cpu):8.0f} {statistics.median(wall):8.0f}")
    print(f"  {'process':<12} {'':>8} {statistics.median(walls) * 1e3:8.0f}")


def write_model(shape: str, vocab: str, path: Path) -> None:
    """A file of a named shape with random weights and somebody's vocabulary."""
    from versus import pieces

    from gguflow.engine.gguf import GgufFile, write_gguf
    from gguflow.models.shapes import as_in_files, metadata, parse_shape

    arch, tensors = parse_shape(shape)
    typed = GgufFile.open(vocab).typed_metadata()
    keys = {k: v for k, v in typed.items() if k.startswith("tokenizer.")} | dict(metadata(arch))
    write_gguf(path, keys, ((n, (d, s, pieces(n, s, d))) for n, s, d in as_in_files(arch, tensors)))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--random", metavar="SHAPE:TYPE")
    p.add_argument("--vocab", metavar="FILE", help="a GGUF file with the vocabulary")
    p.add_argument("-n", type=int, default=5, help="starts of each kind")
    p.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--no-keep", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--file", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.one:
        return one_start(args.file, not args.no_keep)
    if bool(args.random) != bool(args.vocab):
        p.error("--random and --vocab go together")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as d:
        env = os.environ | {"GGUFLOW_CACHE_DIR": str(Path(d) / "cache")}
        path = None
        if args.random:
            path = str(Path(d) / "model.gguf")
            write_model(args.random, args.vocab, Path(path))
            print(f"{args.random}, repacked at every start: CPU ms, wall ms")
            starts(path, max(1, args.n // 2), False, env)
            subprocess.run(
                [sys.executable, __file__, "--one", "--file", path], env=env, check=True,
                capture_output=True,
            )  # fmt: skip
        print(f"{args.random or 'the bundled model'}: CPU ms, wall ms")
        starts(path, args.n, True, env)


if __name__ == "__main__":
    main()
