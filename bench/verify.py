"""What a run that checks guesses takes, beside a plain step.

    python bench/verify.py --random llama3-8b:Q4_0 [-ngl all] [--equal-bits [few|many]] [-d 512]
        [--rows 1,2,5]

Milliseconds of a run of so many rows of one sequence (its last token and the guesses behind it),
tokens chosen and read by the host, and how many times those of one row; then of 8 sequences.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from gguflow.cli.options import add_equal_bits
from gguflow.engine.limits import ALL_LAYERS
from gguflow.engine.model import Model
from gguflow.engine.sampling import GREEDY, N_HISTORY
from gguflow.engine.serving.rows import Piece, Rows, rows_of, single_rows
from gguflow.engine.serving.runner import Runner, Sampling
from gguflow.engine.serving.speculation_rows import verify_rows

N_SEQS = 8


def sampling(n: int) -> Sampling:
    """Of n greedy rows."""
    settings = np.repeat(GREEDY.vector()[None], n, axis=0)
    return Sampling(settings, np.zeros((n, 2), np.int64), np.full((n, N_HISTORY), -1, np.int32))


def run_ms(runner: Runner, rows: Rows, repeats: int) -> float:
    """The least time of some runs, once a plan is compiled and captured."""
    times = []
    for _ in range(3 + repeats):
        began = time.perf_counter()
        np.array(runner.run(rows, sampling(rows.n_tokens))[-1])
        times.append(1e3 * (time.perf_counter() - began))
    return min(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", default="llama3-8b:Q4_0,llama3-8b:F16")
    parser.add_argument("-ngl", choices=("0", "all"), default="0")
    parser.add_argument("-d", type=int, default=512, help="tokens in the context")
    parser.add_argument("-t", type=int, default=0)
    add_equal_bits(parser)
    parser.add_argument("-r", type=int, default=20)
    parser.add_argument("--rows", default="1,2,3,5,9,17")
    args = parser.parse_args()
    sizes = [int(n) for n in args.rows.split(",")]
    for shape in args.random.split(","):
        layers = ALL_LAYERS if args.ngl == "all" else 0
        model = Model.random(
            shape, n_ctx=args.d + 64, n_seqs=N_SEQS, n_gpu_layers=layers, n_threads=args.t,
            equal_bits=args.equal_bits,
        )  # fmt: skip
        runner = Runner(model, n_verify=N_SEQS * max(sizes))
        kv, prompt = runner.kv, [5 + i % 1000 for i in range(args.d)]
        for _ in range(N_SEQS):
            seq = kv.create(prompt)
            kv.grow(seq, args.d - kv.length(seq) + 63)
            for at in range(kv.length(seq), args.d, model.options.n_ubatch):
                part = prompt[at : at + model.options.n_ubatch]
                runner.run(rows_of(kv, [Piece(seq, part)]))
                kv.advance(seq, part)
        for n_seqs in (1, N_SEQS):
            seqs, base = np.arange(n_seqs), 0.0
            print(f"{shape}, {n_seqs} sequences of {args.d} tokens")
            for n in sizes:
                if n == 1:
                    rows = single_rows(seqs, np.full(n_seqs, 7), np.full(n_seqs, args.d))
                else:
                    rows = verify_rows(
                        seqs, [args.d] * n_seqs, [[7 + i for i in range(n)]] * n_seqs
                    )
                ms = run_ms(runner, rows, args.r)
                base = base or ms
                print(f"| {n:4} rows each | {ms:9.3f} ms | {ms / base:6.3f} |", flush=True)


if __name__ == "__main__":
    main()
