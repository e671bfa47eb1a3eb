"""gguflow beside a peer's llama-bench, on the same model file, in turns.

    python bench/versus.py --peer /path/to/llama-bench --shape tinyllama-1.1b \
        --types Q4_0,Q8_0,Q4_K_M -t 2 -p 128 -n 24

Writes a model of the shape with random weights to a temporary directory (speed does not depend on
the values), then runs `gguflow bench` and the peer one after the other, several rounds, so that a
machine that drifts drifts for both. The table has the medians of tokens per second and the ratio;
the last line is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gguflow.engine.gguf import write_gguf
from gguflow.models.shapes import metadata, parse_shape, random_bytes


def write_model(shape: str, path: Path) -> None:
    """A GGUF file of a named shape that llama.cpp's tools load too."""
    arch, tensors = parse_shape(shape)
    keys = {"tokenizer.ggml.model": "no_vocab", **dict(metadata(arch))}
    keys[f"{arch.name}.vocab_size"] = arch.hp.n_vocab
    write_gguf(path, keys, ((n, (d, s, random_bytes(n, s, d))) for n, s, d in tensors))


def measure(command: list[str]) -> dict[str, float]:
    """Test name -> tokens per second of one llama-bench style run with `-o json`."""
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {run.returncode}\n{run.stderr[-2000:]}")
    tests = json.loads(run.stdout[run.stdout.index("[") :])
    return {
        (f"pp{t['n_prompt']}" if t["n_prompt"] else f"tg{t['n_gen']}"): t["avg_ts"] for t in tests
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer", required=True, help="path of llama-bench")
    parser.add_argument("--shape", default="tinyllama-1.1b")
    parser.add_argument("--types", default="Q4_0,Q8_0,Q4_K_M")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-p", "--n-prompt", type=int, default=128)
    parser.add_argument("-n", "--n-gen", type=int, default=24)
    parser.add_argument("-d", "--n-depth", type=int, default=0)
    parser.add_argument("-r", "--repetitions", type=int, default=3, help="in each round")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    flags = ["-t", str(args.threads), "-p", str(args.n_prompt), "-n", str(args.n_gen),
             "-d", str(args.n_depth), "-r", str(args.repetitions), "-o", "json"]  # fmt: skip

    results = []
    print(f"| {args.shape} | test | gguflow t/s | peer t/s | ratio |\n|---|---|---|---|---|")
    for quant in args.types.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_model(f"{args.shape}:{quant}", path)
            ours: dict[str, list[float]] = {}
            theirs: dict[str, list[float]] = {}
            for _ in range(args.rounds):
                for command, into in (
                    ([sys.executable, "-m", "gguflow", "bench", "-m", str(path), *flags], ours),
                    ([args.peer, "-m", str(path), *flags], theirs),
                ):
                    for test, speed in measure(command).items():
                        into.setdefault(test, []).append(speed)
        for test, speeds in ours.items():
            a, b = statistics.median(speeds), statistics.median(theirs[test])
            print(f"| {quant} | {test} | {a:.1f} | {b:.1f} | {a / b:.2f} |", flush=True)
            results.append({"type": quant, "test": test, "gguflow": speeds, "peer": theirs[test],
                            "ratio": a / b})  # fmt: skip
    print(json.dumps({"shape": args.shape, "threads": args.threads, "results": results}))


if __name__ == "__main__":
    main()
