"""gguflow serve beside llama-server: the same file, the same load, one after the other.

    python bench/versus_serve.py --peer /path/to/llama-server --vocab ggml-vocab-llama-bpe.gguf \
        --random llama3-8b:Q4_0 --ngl 99 --clients 64,128 -npp 128 -ntg 128

Writes a model of a shape with random weights and a file's vocabulary, starts each server with as
many sequences as the most clients, and puts `gguflow bench --serve` on it: a closed loop of so many
clients. On a GPU the peer uses flash attention.

Requests before that are not counted, with a rest among them: a server prepares for sizes of runs
when they are first asked for or while nobody asks, 0.1 s each and more, and of a few requests one
would wait for that or none, by their lengths.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serve import numbers
from start import write_model
from versus import file_bytes, folder_for

READY_S = 120.0
REQUESTS_BEFORE, LAST_BEFORE = 12, 2  # requests at first, at least; rounds after the rest
REST_S = 4.0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@contextmanager
def served(command: Sequence[str], log: Path) -> Iterator[tuple[str, float]]:
    """A server while it runs: its address, and seconds until it was ready."""
    port, began = free_port(), time.perf_counter()
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], stdout=out, stderr=out
        )
    try:
        while not is_ready(url):
            if server.poll() is not None or time.perf_counter() - began > READY_S:
                raise RuntimeError(f"{command[0]}: not ready: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield url, time.perf_counter() - began
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def load(url: str, n: int, n_requests: int, n_prompt: int, n_gen: int) -> dict[str, Any]:
    """A closed loop of n clients."""
    done = subprocess.run(
        [sys.executable, "-m", "gguflow", "bench", "--serve", url, "--clients", str(n), "-o",
         "jsonl", "--n-requests", str(n_requests), "-npp", str(n_prompt), "-ntg", str(n_gen)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def prepare(url: str, n: int, n_prompt: int, n_gen: int) -> None:
    """The rounds that are not counted."""
    load(url, n, max(n, REQUESTS_BEFORE), n_prompt, n_gen)
    time.sleep(REST_S)
    load(url, n, LAST_BEFORE * n, n_prompt, n_gen)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--peer", required=True, help="path of llama-server; empty for none")
    p.add_argument("--random", default="llama3-8b:Q4_0", metavar="SHAPE:TYPE")
    p.add_argument("--vocab", required=True, metavar="FILE", help="a GGUF file's vocabulary")
    p.add_argument("--clients", type=numbers, default=[64, 128])
    p.add_argument("--ngl", type=int, default=0, metavar="N", help="layers on the GPU")
    p.add_argument("--rounds", type=int, default=2, help="requests of each client")
    p.add_argument("-npp", type=int, default=128)
    p.add_argument("-ntg", type=int, default=128)
    args = p.parse_args()
    most, each = max(args.clients), -(-(2 * args.npp + args.ntg + 32) // 64) * 64
    print("| server | clients | t/s | first p50 | p95 ms | between p50 | p95 ms | ready s |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory(dir=folder_for(file_bytes(args.random))) as folder:
        path = Path(folder) / "model.gguf"
        write_model(args.random, args.vocab, path)
        common = ["-m", str(path), "-ngl", str(args.ngl), "-np", str(most)]
        flash = ["-fa", "on"] if args.ngl else []
        sides = {
            "gguflow": [sys.executable, "-m", "gguflow", "serve", *common, "-c", str(each)],
            "peer": [args.peer, *common, "-c", str(most * each), *flash],
        }
        for name, command in sides.items():
            if not command[0]:
                continue
            with served(command, Path(folder) / f"{name}.log") as (url, ready):
                for n in args.clients:
                    prepare(url, n, args.npp, args.ntg)
                    r = load(url, n, args.rounds * n, args.npp, args.ntg)
                    if r["requests"] != args.rounds * n:
                        raise RuntimeError(f"{name}: {r['errors']}")
                    names = "first_p50", "first_p95", "between_p50", "between_p95"
                    cells = [name, n, f"{r['tokens_per_s']:.1f}",
                             *(f"{1e3 * r[k]:.1f}" for k in names), f"{ready:.1f}"]  # fmt: skip
                    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
