"""gguflow beside a peer's llama-bench, on the same model files, in turns.

    python bench/versus.py --peer /path/to/llama-bench -t 2 --tests pp128,tg24 \
        --random tinyllama-1.1b:Q4_0,tinyllama-1.1b:F16
    python bench/versus.py --peer /path/to/llama-bench --random llama3-8b:Q4_0,llama3.2-1b:Q4_0 \
        --tests pp512,tg128,tg32@d8192 --ngl 99
    python bench/versus.py --peer /path/to/llama-bench --random llama3-70b-10l:F16 \
        --tests pp512,tg128 --ngl 99 --cards 2

Writes a model of each shape with random weights (speed does not depend on the values) to memory, or
to a temporary directory where that is too small, runs `gguflow bench` and the peer on it one after
the other, several rounds, so that a machine that drifts drifts for both, and deletes it. The table
has the medians of tokens per second and their ratio; the last line is one JSON document. With --ngl
the peer uses flash attention; with --cards both have `-sm tensor` over so many.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from gguflow.engine.gguf import write_gguf
from gguflow.engine.graph import DType
from gguflow.models.shapes import as_in_files, metadata, parse_shape, random_rows

_TEST = re.compile(r"(pp|tg)(\d+)(?:@d(\d+))?")
_ROOM = 1.25  # of a file's size: memory that must be free before it is written there
Speeds = dict[str, list[float]]  # test -> tokens per second of each round


class RunError(Exception):
    """A benchmark that failed: its command, exit code and last words."""


# -- the model -------------------------------------------------------------------------------------


def pieces(name: str, shape: tuple[int, ...], dtype: DType) -> Iterator[np.ndarray]:
    """The bytes of `random_bytes`, without ever having all of them."""
    block = random_rows(name, shape, dtype)
    rows = prod(shape[:-1])
    for at in range(0, rows, len(block)):
        yield block[: rows - at]


def write_model(shape: str, path: Path) -> None:
    """A GGUF file of a named shape that llama.cpp's tools load too."""
    arch, tensors = parse_shape(shape)
    keys = {"tokenizer.ggml.model": "no_vocab", **dict(metadata(arch))}
    keys[f"{arch.name}.vocab_size"] = arch.hp.n_vocab
    write_gguf(path, keys, ((n, (d, s, pieces(n, s, d))) for n, s, d in as_in_files(arch, tensors)))


def file_bytes(shape: str) -> int:
    """About what `write_model` will write."""
    _, tensors = parse_shape(shape)
    return sum(d.array_bytes(s) for _, s, d in tensors)


def folder_for(nbytes: int) -> str:
    """Where a file of this size is written: memory if it is large enough, else the disk."""
    need, memory = int(nbytes * _ROOM), Path("/dev/shm")
    if memory.is_dir() and min(shutil.disk_usage(memory).free, free_memory()) >= need:
        return str(memory)
    return tempfile.gettempdir()


def free_memory() -> int:
    """Bytes of memory that can be taken without swapping; 0 where the system does not say."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0


# -- the runs --------------------------------------------------------------------------------------


def parse_tests(text: str) -> dict[int, list[tuple[str, int]]]:
    """`pp512,tg32@d8192` -> {0: [("pp", 512)], 8192: [("tg", 32)]}, by depth: one process runs all
    tests of a depth."""
    tests: dict[int, list[tuple[str, int]]] = {}
    for part in text.split(","):
        m = _TEST.fullmatch(part.strip())
        if m is None or int(m[2]) == 0:
            raise argparse.ArgumentTypeError(f"{part}: expected ppN or tgN, with @dN for a depth")
        tests.setdefault(int(m[3] or 0), []).append((m[1], int(m[2])))
    return tests


def test_flags(depth: int, tests: Sequence[tuple[str, int]]) -> list[str]:
    """llama-bench's flags for the tests of one depth."""
    flags = []
    for kind, flag in (("pp", "-p"), ("tg", "-n")):
        flags += [flag, ",".join(str(n) for k, n in tests if k == kind) or "0"]
    return [*flags, "-d", str(depth)]


def measure(command: list[str]) -> dict[str, float]:
    """Test name -> tokens per second of one llama-bench style run with `-o json`."""
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RunError(f"{' '.join(command)}: exit code {run.returncode}\n{run.stderr[-2000:]}")
    return {test_name(t): t["avg_ts"] for t in json.loads(run.stdout[run.stdout.index("[") :])}


def test_name(result: dict[str, Any]) -> str:
    """`tg32@d8192`, as in --tests."""
    kind = f"pp{result['n_prompt']}" if result["n_prompt"] else f"tg{result['n_gen']}"
    return kind + (f"@d{result['n_depth']}" if result["n_depth"] else "")


def compare(path: Path, args: argparse.Namespace) -> tuple[Speeds, Speeds]:
    """All rounds of all tests on one file: ours and the peer's. Raises RunError."""
    common = ["-m", str(path), "-r", str(args.repetitions), "-o", "json"]
    layers = ["-ngl", str(args.ngl)]
    common += ["-t", str(args.threads)] if args.threads else []
    sample = ["--sample"] if args.sample else []
    flash = ["-fa", "1"] if args.ngl else []
    ours, theirs = (["--cpu-moe"], ["-ncmoe", "999"]) if args.cpu_moe else ([], [])
    if args.cards > 1:  # parts of all layers are on all of ours
        names = ",".join(f"cuda:{k}" for k in range(args.cards))
        ours += ["--devices", names, "-sm", "tensor"]
        theirs += [*layers, "-sm", "tensor"]
    else:
        ours, theirs = [*layers, *ours], [*layers, *theirs]
    sides: list[tuple[list[str], Speeds]] = [
        ([sys.executable, "-m", "gguflow", "bench", *common, *sample, *ours], {}),
        ([args.peer, *common, *flash, *theirs], {}),
    ]
    for _ in range(args.rounds):
        for depth, tests in args.tests.items():
            for command, speeds in sides:
                for test, speed in measure([*command, *test_flags(depth, tests)]).items():
                    speeds.setdefault(test, []).append(speed)
    return sides[0][1], sides[1][1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer", required=True, help="path of llama-bench")
    parser.add_argument("--random", required=True, metavar="SHAPE:TYPE,...", help="models")
    parser.add_argument("--tests", type=parse_tests, default="pp128,tg24", metavar="LIST",
                        help="ppN, tgN, ppN@dDEPTH, ... (default pp128,tg24)")  # fmt: skip
    parser.add_argument("--ngl", type=int, default=0, metavar="N", help="layers on the GPU")
    parser.add_argument("--cards", type=int, default=1, metavar="N", help="split by tensors over N")
    parser.add_argument("--cpu-moe", action="store_true", help="all experts on the host")
    parser.add_argument("--sample", action="store_true", help="`gguflow bench --sample`")
    parser.add_argument("-t", "--threads", type=int, help="default: each program's own")
    parser.add_argument("-r", "--repetitions", type=int, default=3, help="in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where the models are written")
    args = parser.parse_args()
    models, results, failed = args.random.split(","), [], 0
    for model in models:
        parse_shape(model)  # an unknown one should not show after the others have run
    print("| model | test | gguflow t/s | peer t/s | ratio |\n|---|---|---|---|---|")
    for model in models:
        began = time.perf_counter()
        where = args.folder or folder_for(file_bytes(model))
        with tempfile.TemporaryDirectory(prefix="versus-", dir=where) as folder:
            path = Path(folder) / "model.gguf"
            write_model(model, path)
            wrote = time.perf_counter() - began
            try:
                ours, theirs = compare(path, args)
            except RunError as e:
                print(f"{model}: {e}", file=sys.stderr, flush=True)
                failed += 1
                continue
        for test, speeds in ours.items():
            a, b = statistics.median(speeds), statistics.median(theirs[test])
            print(f"| {model} | {test} | {a:.1f} | {b:.1f} | {a / b:.2f} |", flush=True)
            results.append({"model": model, "test": test, "gguflow": speeds,
                            "peer": theirs[test], "ratio": a / b})  # fmt: skip
        took = time.perf_counter() - began
        print(f"{model}: written to {where} in {wrote:.1f} s, all in {took:.1f} s", file=sys.stderr)
    settings = {"ngl": args.ngl, "threads": args.threads, "sample": args.sample,
                "cpu_moe": args.cpu_moe, "cards": args.cards}  # fmt: skip
    print(json.dumps({**settings, "results": results}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
