"""Equal bits on a large shape: requests alone and then in engines, see docs/equal-bits.md.

    python bench/same_bits.py --random llama3-8b:Q4_0 [-ngl all] [--equal-bits] [--requests 100]

For every number of sequences, with and without guesses: how many requests were completed, and how
many of them had other tokens, or other logits, than alone; then what differs first.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from gguflow.engine.graph import dtype_by_name
from gguflow.engine.limits import ALL_LAYERS
from gguflow.engine.model import Model
from gguflow.engine.runtime import BoundPlan
from gguflow.engine.serving.speculation import Speculation

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "serving")]
import equal_bits  # noqa: E402  (where the tests' own requests and engines are)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", default="llama3-8b:Q4_0")
    parser.add_argument("-ngl", choices=("0", "all"), default="0")
    parser.add_argument("--equal-bits", action="store_true")
    parser.add_argument("-ctk", default="f16")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--at-once", default="1,3,8,32,128")
    args = parser.parse_args()
    kv = dtype_by_name(args.ctk)
    model = Model.random(
        args.random, n_ctx=1024, k_type=kv, v_type=kv,
        n_gpu_layers=ALL_LAYERS if args.ngl == "all" else 0, equal_bits=args.equal_bits,
    )  # fmt: skip
    BoundPlan.token_loop = None  # type: ignore[method-assign,assignment]  # logits of every step
    todo = equal_bits.requests(args.requests)
    began = time.perf_counter()
    expected = equal_bits.alone(model, todo)
    print(f"{args.random}, cache {args.ctk}: alone in {time.perf_counter() - began:.0f} s")
    print("| at once | guesses | completed | other tokens | other logits | s |")
    for n_seqs in map(int, args.at_once.split(",")):
        for guesses in (None, Speculation(lookup=True, most=7, adaptive=False)):
            model.speculate(guesses)
            began = time.perf_counter()
            count: Counter[str] = Counter()
            for number, bits in equal_bits.together(model, todo, n_seqs, n_seqs):
                wanted = expected[number]
                count["completed"] += bits.complete
                count["tokens"] += bits.tokens != wanted.tokens[: len(bits.tokens)]
                count["logits"] += bits.complete and bits.digest != wanted.digest
            row = (
                f"{n_seqs:7}", f"{'yes' if guesses else 'no':7}", f"{count['completed']:9}",
                f"{count['tokens']:12}", f"{count['logits']:12}",
                f"{time.perf_counter() - began:.0f}",
            )  # fmt: skip
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
