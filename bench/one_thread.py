"""Speed of one thread by the CPU seconds that it took, beside a peer's llama-bench: for machines
that others use too, where the clock on the wall says little.

    python bench/one_thread.py --peer /path/to/llama-bench gemma3-1b:Q4_0 qwen3.5-0.8b:Q4_0

Each shape is written with random weights to memory (see versus.py). Ours: the least of three
prompts of 128 tokens and of three times 16 single tokens. The peer's: what two repetitions more
cost, so that loading does not count. Waiting for memory counts on both sides.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from versus import file_bytes, folder_for, write_model

from gguflow.engine.model import Model

N_PROMPT, N_TOKENS, TIMES = 128, 16, 3


def ours(path: Path) -> tuple[float, float]:
    """Tokens per CPU second: of a prompt, and one at a time."""
    model = Model.load(path, n_threads=1, n_ctx=1024)
    session, n_vocab = model.new_session(), model.hp.n_vocab
    prompt = [i * 7919 % n_vocab for i in range(N_PROMPT)]
    took: list[tuple[float, float]] = []
    for _ in range(TIMES):
        session.rewind(0)
        start = time.process_time()
        session.step(prompt, "last", prompt=True)
        middle = time.process_time()
        for token in prompt[:N_TOKENS]:
            session.step([token], "last")
        took.append((middle - start, time.process_time() - middle))
    return N_PROMPT / min(t for t, _ in took), N_TOKENS / min(t for _, t in took)


def children_seconds(command: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peers(binary: str, path: Path) -> tuple[float, float]:
    """The same of llama-bench."""

    def seconds(n_prompt: int, n_tokens: int) -> float:
        sizes = ["-p", str(n_prompt), "-n", str(n_tokens)]
        run: Callable[[int], float] = lambda r: children_seconds(  # noqa: E731
            [binary, "-m", str(path), "-t", "1", "-ngl", "0", "--no-warmup", *sizes, "-r", str(r)]
        )
        return min(run(3) for _ in range(2)) - min(run(1) for _ in range(2))

    return 2 * N_PROMPT / seconds(N_PROMPT, 0), 2 * N_TOKENS / seconds(0, N_TOKENS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", required=True, help="path of llama-bench")
    parser.add_argument("shapes", nargs="+", metavar="SHAPE:TYPE")
    args = parser.parse_args()
    print("| model | pp: gguflow | peer | ratio | tg: gguflow | peer | ratio |")
    print(f"|{'---|' * 7}", flush=True)
    for shape in args.shapes:
        with tempfile.TemporaryDirectory(dir=folder_for(file_bytes(shape))) as folder:
            path = Path(folder) / "m.gguf"
            write_model(shape, path)
            cells = []
            for mine, other in zip(ours(path), peers(args.peer, path), strict=True):
                cells += [f"{mine:.1f}", f"{other:.1f}", f"{mine / other:.2f}"]
            print(f"| {shape} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
