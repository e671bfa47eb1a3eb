"""What `gguflow bench` runs: comma lists and ranges, and every combination of them."""

from __future__ import annotations

import re
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from gguflow.engine.dataclass import dataclass
from gguflow.engine.limits import MAX_TOKENS

from .options import LAYER_WORDS, MAX_LAYERS, real

_RANGE = re.compile(r"(\d+)-(\d+)(?:([+*])(\d+))?")


@dataclass(frozen=True)
class BenchTest:
    """One measurement of one model: a prompt, a generation, or one after the other.

    n_depth: tokens in the context before the clock starts. n_gpu_layers: as in `Options`.
    sampled: each generated token is the most likely one, instead of a random one.
    """

    n_prompt: int
    n_gen: int
    n_depth: int
    n_batch: int
    n_ubatch: int
    n_threads: int
    type_k: str
    type_v: str
    n_gpu_layers: int = 0
    sampled: bool = False

    @property
    def name(self) -> str:
        return test_name(vars(self))

    @property
    def n_ctx(self) -> int:
        """Rows of KV cache the test needs."""
        return self.n_depth + self.n_prompt + self.n_gen

    @property
    def n_seqs(self) -> int:
        return 1


@dataclass(frozen=True)
class SequencesTest:
    """Prompts of n_prompt tokens in n_seqs sequences, then n_gen tokens for each of them."""

    n_prompt: int
    n_gen: int
    n_seqs: int
    n_batch: int
    n_ubatch: int
    n_threads: int
    type_k: str
    type_v: str
    n_gpu_layers: int = 0

    @property
    def n_ctx(self) -> int:
        """Rows of KV cache a sequence needs."""
        return self.n_prompt + self.n_gen


def test_name(test: Mapping[str, Any]) -> str:
    """As llama-bench prints it, from a test's fields: `pp512`, `tg128 @ d1024`, `pp512+tg128`."""
    sampled = " sampled" if test["sampled"] else ""
    parts = (f"pp{test['n_prompt']}" if test["n_prompt"] else "",
             f"tg{test['n_gen']}{sampled}" if test["n_gen"] else "")  # fmt: skip
    return "+".join(filter(None, parts)) + (f" @ d{test['n_depth']}" if test["n_depth"] else "")


class Extend(Action):
    """Options may be given again; their lists join. A first use replaces the default."""

    def __call__(
        self, parser: ArgumentParser, args: Namespace, values: Any, option: str | None = None
    ) -> None:
        given: set[str] = getattr(args, "_given", set())
        old = list(getattr(args, self.dest)) if self.dest in given else []
        setattr(args, self.dest, old + values)
        args._given = given | {self.dest}


def numbers(least: int, most: int = MAX_TOKENS) -> Callable[[str], list[int]]:
    """Converter for `1,2,8-12+2,16-128*2`."""

    def convert(text: str) -> list[int]:
        found: list[int] = []
        for part in text.split(","):
            try:
                values = list(_expand(part))
            except ValueError:
                values = [least - 1]
            if not values or not all(least <= v <= most for v in values):
                raise ArgumentTypeError(
                    f"{part}: expected whole numbers from {least} to {most}, or a range such as "
                    "1-8, 1-9+2 or 1-8*2"
                )
            found += values
        return found

    return convert


def _expand(part: str) -> Iterator[int]:
    m = _RANGE.fullmatch(part)
    if m is None:
        yield int(part)
        return
    first, last, sign, step = int(m[1]), int(m[2]), m[3] or "+", int(m[4] or 1)
    if (sign == "*" and (step < 2 or first < 1)) or step < 1 or (last - first) // step > 1000:
        raise ValueError(part)
    while first <= last:
        yield first
        first = first * step if sign == "*" else first + step


def words(check: Callable[[str], str] = str) -> Callable[[str], list[str]]:
    """Converter for a comma list of words."""
    return lambda text: [check(part) for part in text.split(",")]


def shares(text: str) -> list[float]:
    """Converter for a comma list of numbers from 0 to 1."""
    found = [real(part) for part in text.split(",")]
    for part in found:
        if not 0 <= part <= 1:
            raise ArgumentTypeError(f"{part}: expected 0 to 1")
    return found


def layer_counts(text: str) -> list[int]:
    """Converter for -ngl's `0,16,all`."""
    counts = numbers(0, MAX_LAYERS)
    return [
        n
        for part in text.split(",")
        for n in ([LAYER_WORDS[part]] if part in LAYER_WORDS else counts(part))
    ]


def pair(text: str) -> list[tuple[int, int]]:
    """Converter for -pg's `pp,tg`."""
    found = numbers(1)(text)
    if len(found) != 2:
        raise ArgumentTypeError(f"{text}: expected two numbers: prompt,generated")
    return [(found[0], found[1])]


def grid(args: Namespace, default_threads: int) -> list[BenchTest]:
    """Every combination, the tests of one set of settings together, as llama-bench orders them."""
    settings: Sequence[Sequence[Any]] = (
        args.n_depth, args.batch_size, args.ubatch_size,
        args.threads or [default_threads], args.cache_type_k, args.cache_type_v,
    )  # fmt: skip
    kinds = [(p, 0) for p in args.n_prompt if p] + [(0, n) for n in args.n_gen if n] + args.pg
    return [
        BenchTest(*kind, *chosen)
        for layers in args.gpu_layers
        for chosen in product(*settings, [layers], [args.sample])
        for kind in kinds
    ]


def sequences_grid(args: Namespace, default_threads: int) -> list[SequencesTest]:
    """Every combination, in llama-batched-bench's order, for each of the settings."""
    settings: Sequence[Sequence[Any]] = (
        args.batch_size, args.ubatch_size, args.threads or [default_threads],
        args.cache_type_k, args.cache_type_v,
    )  # fmt: skip
    return [
        SequencesTest(*sizes, *chosen)
        for layers in args.gpu_layers
        for chosen in product(*settings, [layers])
        for sizes in product(args.n_prompts, args.n_gens, args.sequences)
    ]
