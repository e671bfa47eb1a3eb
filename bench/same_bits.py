"""Equal bits of any model: requests alone and then in engines, see docs/equal-bits.md.

    python bench/same_bits.py --random llama3-8b:Q4_0 [-ngl all] [--equal-bits [few|many]]
        [--requests 100]
    python bench/same_bits.py -m models/bundled/tales-8m.gguf --weights Q4_0,F16 -ctk f16,q8_0 ..

For every number of sequences, with and without guesses: how many requests were completed, and how
many of them had other tokens, or other logits, than alone; then what differs first.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from gguflow.cli.options import add_equal_bits
from gguflow.engine.graph import dtype_by_name
from gguflow.engine.limits import ALL_LAYERS
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.requantize import native_converter, requantize
from gguflow.engine.runtime import BoundPlan
from gguflow.engine.serving.speculation import Speculation
from gguflow.models.mixes import find_mix

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "serving")]
import equal_bits  # noqa: E402  (where the tests' own requests and engines are)


def models(args: argparse.Namespace) -> Iterator[tuple[str, Model]]:
    """What is asked for, with names; of a file in the types of each mix of weights."""
    layers = ALL_LAYERS if args.ngl == "all" else 0
    for type_kv in args.ctk.split(","):
        kv = dtype_by_name(type_kv)
        options = Options(
            n_ctx=1024, k_type=kv, v_type=kv, n_gpu_layers=layers, equal_bits=args.equal_bits
        )
        if args.m is None:
            yield f"{args.random}, cache {type_kv}", Model.random(args.random, options)
            continue
        for mix in args.weights.split(","):
            source = requantize(open_model(args.m), find_mix(mix), native_converter(1))
            model = Model(source, options)
            model.load_weights()
            yield f"{args.m} in {mix}, cache {type_kv}", model


def compare(name: str, model: Model, n_requests: int, at_once: Sequence[int]) -> int:
    """Print a table; returns how many requests had something else."""
    todo = equal_bits.requests(n_requests)
    began = time.perf_counter()
    expected = equal_bits.alone(model, todo)
    print(f"{name}: alone in {time.perf_counter() - began:.0f} s")
    print("| at once | guesses | completed | other tokens | other logits | s |")
    n_other = 0
    for n_seqs in at_once:
        for guesses in (None, Speculation(lookup=True, most=7, adaptive=False)):
            model.speculate(guesses)
            began = time.perf_counter()
            count: Counter[str] = Counter()
            first = ""
            for number, bits in equal_bits.together(model, todo, n_seqs, n_seqs):
                wanted = expected[number]
                count["completed"] += bits.complete
                count["tokens"] += bits.tokens != wanted.tokens[: len(bits.tokens)]
                count["logits"] += bits.complete and bits.digest != wanted.digest
                assert bits.digest or not bits.complete
                at = bits.differs_at(wanted)
                if at is not None and not first:
                    r = todo[number]
                    first = (
                        f"  request {number}, a prompt of {len(r.ids)}, {r.settings}: token {at}"
                    )
            n_other += count["tokens"] + count["logits"]
            row = (
                f"{n_seqs:7}", f"{'yes' if guesses else 'no':7}", f"{count['completed']:9}",
                f"{count['tokens']:12}", f"{count['logits']:12}",
                f"{time.perf_counter() - began:.0f}",
            )  # fmt: skip
            print(f"| {' | '.join(row)} |", flush=True)
            if first:
                print(first, flush=True)
    return n_other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", default="llama3-8b:Q4_0")
    parser.add_argument("-m", metavar="FILE", help="instead of random weights")
    parser.add_argument("--weights", default="Q4_0,Q8_0,Q4_K_M,F16,BF16", help="with -m")
    parser.add_argument("-ngl", choices=("0", "all"), default="0")
    add_equal_bits(parser)
    parser.add_argument("-ctk", default="f16", help="types of the cache's keys and values")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--at-once", default="1,3,8,32,128")
    args = parser.parse_args()
    # Logits of every step are seen.
    BoundPlan.token_loop = None  # type: ignore[method-assign,assignment]
    BoundPlan.round_loop = lambda *_: None  # type: ignore[method-assign,assignment]
    at_once = [int(n) for n in args.at_once.split(",")]
    n_other = sum(compare(name, m, args.requests, at_once) for name, m in models(args))
    sys.exit(1 if n_other else 0)


if __name__ == "__main__":
    main()
