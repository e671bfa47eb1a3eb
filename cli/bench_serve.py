"""`gguflow bench --serve URL`: load on any OpenAI endpoint, and what its clients notice of it.

Closed loop: so many clients, each of which asks again when it has its answer. Open loop: requests
come at random times at a rate, however long answers take.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from gguflow.engine.dataclass import dataclass

from . import bench_soak
from .bench_grid import Extend, numbers
from .bench_http import Endpoint, HttpError, Outcome
from .errors import CHECK_FAILED, OK, UsageError
from .load import note
from .options import real, whole
from .prompt import read_file
from .stream import write

WORDS = ["time", "house", "water", "light", "stone", "river", "winter", "summer", "mother",
         "father", "brother", "garden", "castle", "forest", "morning", "evening", "silver",
         "golden", "little", "great"]  # fmt: skip
SPREADS = ("fixed", "uniform", "exponential")


def rates(text: str) -> list[float]:
    """Converter for numbers above zero, separated by commas."""
    found = [real(part) for part in text.split(",")]
    if any(rate <= 0 for rate in found):
        raise ArgumentTypeError(f"{text}: expected more than 0")
    return found


def add_serve(p: ArgumentParser) -> None:
    """The arguments of --serve."""
    g = p.add_argument_group("load on a server, with --serve")
    g.add_argument("--serve", metavar="URL", help="an OpenAI endpoint to put load on")
    g.add_argument(
        "--clients", type=numbers(1, 100_000), default=[], action=Extend, metavar="N",
        help="closed loop: clients at once (default 1, 8, 32)",
    )  # fmt: skip
    g.add_argument("--rate", type=rates, default=[], action=Extend, metavar="R",
                   help="open loop: requests a second")  # fmt: skip
    g.add_argument("--n-requests", type=whole(1), metavar="N",
                   help="of each test (default: 8 for each client, 64 for a rate)")  # fmt: skip
    g.add_argument("--spread", choices=SPREADS, default="fixed",
                   help="of the lengths of prompts and answers about -npp and -ntg")  # fmt: skip
    g.add_argument("--shared-prefix", type=whole(0), default=0, metavar="N",
                   help="tokens at the beginning of all prompts that are the same")  # fmt: skip
    g.add_argument("--soak", type=real, metavar="S",
                   help="the same requests for so many seconds, each with the text it gets alone, "
                   "and no growth of the server's memory (256 clients)")  # fmt: skip
    g.add_argument("--api-key", metavar="FILE", help="a file with the server's key")
    g.add_argument("--served-model", metavar="NAME", help="which model (default: the first)")


@dataclass(frozen=True)
class Load:
    """One test. clients: of a closed loop, 0 for an open one of `rate` requests a second."""

    clients: int
    rate: float
    n_requests: int
    n_prompt: int
    n_gen: int
    spread: str
    shared_prefix: int


def run_serve(args: Namespace) -> int:
    """Run every test and write its row."""
    key = ""
    if args.api_key:
        lines = read_file(args.api_key, "--api-key").split()
        key = lines[0] if lines else ""
    try:
        endpoint = Endpoint(args.serve, key)
    except ValueError as e:
        raise UsageError(f"--serve {e}") from None
    if args.output not in ("md", "json", "jsonl"):
        raise UsageError(f"-o {args.output}: with --serve, md, json or jsonl")
    tests = grid(args)
    try:
        if args.soak is not None:
            return asyncio.run(_soak(endpoint, args))
        rows = asyncio.run(_run(endpoint, tests, args))
    except (OSError, HttpError) as e:
        raise UsageError(f"--serve {args.serve}: {e}") from None
    if args.output == "json":
        write(json.dumps(rows) + "\n")
    return OK if all(row["requests"] for row in rows) else CHECK_FAILED


def grid(args: Namespace) -> list[Load]:
    """Every combination."""
    closed = args.clients or ([] if args.rate else [1, 8, 32])
    kinds = [(n, 0.0) for n in closed] + [(0, rate) for rate in args.rate]
    return [
        Load(
            clients, rate, args.n_requests or (8 * clients or 64), n_prompt, n_gen, args.spread,
            args.shared_prefix,
        )
        for (clients, rate), n_prompt, n_gen in product(kinds, args.n_prompts, args.n_gens)
    ]  # fmt: skip


async def _soak(endpoint: Endpoint, args: Namespace) -> int:
    if args.soak <= 0 or args.rate:
        raise UsageError("--soak: expected more than 0 seconds, of clients and not of a rate")
    model, per_word = await _begin(endpoint, args)
    prompts = Prompts(per_word, args.shared_prefix, "exponential", 0)
    texts = [prompts.text(prompts.length(args.n_prompts[0])) for _ in range(bench_soak.N_REQUESTS)]
    return await bench_soak.run(endpoint, model, texts, args.n_gens[0], args)


async def _run(endpoint: Endpoint, tests: Sequence[Load], args: Namespace) -> list[dict[str, Any]]:
    model, per_word = await _begin(endpoint, args)
    rows = []
    for i, test in enumerate(tests):
        row = await measure(endpoint, model, test, per_word, i)
        rows.append(row)
        if args.output == "md":
            _table(row, first=not i)
        elif args.output == "jsonl":
            write(json.dumps(row) + "\n")
    return rows


async def _begin(endpoint: Endpoint, args: Namespace) -> tuple[str, float]:
    """The model's name, and what a word costs of its tokens."""
    listed = await endpoint.get("/v1/models")
    model = args.served_model or listed["data"][0]["id"]
    # What a word costs of this server's tokens; the second request finds everything warm.
    sample, n_words = Prompts(1.0, 0, "fixed", 0), max(1, min(200, *args.n_prompts, 200) // 2)
    for _ in range(2):
        tried = await endpoint.complete(completion(model, sample.text(n_words), 2))
        # Two tokens of a model may have no text.
        if tried.status != 200 or tried.error:
            raise HttpError(tried.error or f"status {tried.status}")
    return model, (tried.n_prompt or n_words) / n_words


def completion(model: str, prompt: str, n_gen: int) -> dict[str, Any]:
    """A completion of so many tokens."""
    return {"model": model, "prompt": prompt, "max_tokens": n_gen, "temperature": 0.0,
            "ignore_eos": True}  # fmt: skip


class Prompts:
    """Texts of about so many tokens, each different behind the shared prefix."""

    def __init__(self, per_word: float, shared: int, spread: str, seed: int) -> None:
        self._rng = random.Random(f"{seed} {time.time_ns()}")
        self._per_word, self._spread = per_word, spread
        self._prefix = self._words(shared, random.Random(seed))

    def length(self, mean: int) -> int:
        """A length about a mean."""
        if self._spread == "uniform":
            return self._rng.randint(max(1, mean // 2), max(1, mean + mean // 2))
        if self._spread == "exponential":
            return max(1, min(8 * mean, round(-mean * math.log(1 - self._rng.random()))))
        return max(1, mean)

    def text(self, n_tokens: int) -> str:
        """A prompt, of which the prefix is a part."""
        own = max(1, n_tokens - len(self._prefix.split()) * self._per_word)
        return f"{self._prefix} {self._words(own, self._rng)}".strip()

    def _words(self, n_tokens: float, rng: random.Random) -> str:
        return " ".join(rng.choices(WORDS, k=max(0, round(n_tokens / self._per_word))))


async def measure(
    endpoint: Endpoint, model: str, test: Load, per_word: float, seed: int
) -> dict[str, Any]:
    """One test's row."""
    prompts = Prompts(per_word, test.shared_prefix, test.spread, seed)
    bodies = [
        completion(model, prompts.text(prompts.length(test.n_prompt)), prompts.length(test.n_gen))
        for _ in range(test.n_requests)
    ]
    outcomes = list[Outcome]()
    began = time.perf_counter()
    if test.clients:
        outcomes = await closed_loop(endpoint, bodies, test.clients)
    else:
        rng = random.Random(seed)

        async def once(each: dict[str, Any]) -> None:
            outcomes.append(await endpoint.complete(each))

        async with asyncio.TaskGroup() as group:
            for each in bodies:
                group.create_task(once(each))
                await asyncio.sleep(rng.expovariate(test.rate))
    return asdict(test) | summary(outcomes, time.perf_counter() - began)


async def closed_loop(
    endpoint: Endpoint, bodies: Sequence[dict[str, Any]], n_clients: int
) -> list[Outcome]:
    """So many clients, each of which asks for the next completion when it has its answer."""
    left, outcomes = iter(bodies), list[Outcome]()

    async def client() -> None:
        for each in left:
            outcomes.append(await endpoint.complete(each))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(n_clients, len(bodies))):
            group.create_task(client())
    return outcomes


def summary(outcomes: Sequence[Outcome], took: float) -> dict[str, Any]:
    """Rates and percentiles. first: seconds to the first text; between: two pieces of text apart,
    a piece being a token or a few; whole: to the end. errors: by status or message."""
    good = [o for o in outcomes if o.ok]
    between = [b - a for o in good for a, b in zip(o.pieces, o.pieces[1:], strict=False)]
    errors = Counter(o.error or str(o.status) for o in outcomes if not o.ok)
    row: dict[str, Any] = {
        "requests": len(good), "seconds": took, "errors": dict(errors),
        "requests_per_s": len(good) / took,
        "prompt_per_s": sum(o.n_prompt for o in good) / took,
        "tokens_per_s": sum(o.n_generated or len(o.pieces) for o in good) / took,
    }  # fmt: skip
    for name, values in (
        ("first", [o.pieces[0] for o in good]),
        ("between", between),
        ("whole", [o.end for o in good]),
    ):
        for p in (50, 95, 99):
            row[f"{name}_p{p}"] = percentile(values, p)
    return row


def percentile(values: Sequence[float], p: float) -> float:
    """By the nearest rank; 0 of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * p / 100) - 1)] if ordered else 0.0


def _table(row: dict[str, Any], first: bool) -> None:
    names = ("load", "npp", "ntg", "requests", "req/s", "prompt t/s", "t/s", "first p50", "p95",
             "p99 ms", "between p50", "p95", "p99 ms", "errors")  # fmt: skip
    if first:
        write("| " + " | ".join(names) + " |\n")
        write("|" + "|".join("-" * (len(n) + 1) + ":" for n in names) + "|\n")
    load = f"{row['clients']} clients" if row["clients"] else f"{row['rate']:g}/s"
    cells = [load, row["n_prompt"], row["n_gen"], row["requests"], f"{row['requests_per_s']:.2f}",
             f"{row['prompt_per_s']:.0f}", f"{row['tokens_per_s']:.1f}"]  # fmt: skip
    cells += [f"{1e3 * row[f'first_p{p}']:.1f}" for p in (50, 95, 99)]
    cells += [f"{1e3 * row[f'between_p{p}']:.2f}" for p in (50, 95, 99)]
    errors = ", ".join(f"{n} x {what}" for what, n in row["errors"].items()) or "0"
    write("| " + " | ".join(map(str, [*cells, errors])) + " |\n")
    if row["errors"]:
        note(f"bench: errors: {errors}")
