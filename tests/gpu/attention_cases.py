"""Cases of attention at the sizes of real models, and how they are run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from harness import build_case, nmse, run_on
from sizes import fewer

from gguflow.engine.graph import Case, Operand, op_spec
from gguflow.engine.plan_key import PAGE

EXACT = {"f32": 1e-7, "f16": 1e-6, "bf16": 1e-4, "q8_0": 1e-6}
Seqs = Sequence[tuple[int, int]]  # of each sequence, new tokens and those before


def case(
    seqs: Seqs, heads: tuple[int, int] = (32, 8), hd: int = 128, dtype: str = "f16", *,
    pos: Any = None, dirty: bool = False, v_dtype: str = "", told: bool = True, entries: int = 0,
    shared: int = 0, sinks: float = 0.0, **params: Any,
) -> Case:  # fmt: skip
    """New tokens of sequences, whose pages lie in a mixed order among some that nobody has.

    dirty: keys that no token sees are NaN. told: n_single says how many of the first tokens are
    alone. entries: of the table, at least. shared: first pages that all sequences have in common.
    """
    last = [past + n - 1 for n, past in seqs]
    window = params.get("window", 0)
    entries = max(entries, max(last) // PAGE + 1)
    n_pages = sum(end // PAGE + 1 for end in last) + 3
    free = iter(np.random.default_rng(len(seqs)).permutation(n_pages))
    table = np.full((len(seqs), entries), -1, np.int32)
    beginning = [next(free) for _ in range(shared)]
    seen = np.zeros((n_pages, PAGE), bool)
    for row, end, (_, past) in zip(table, last, seqs, strict=True):
        first = max(0, past - window + 1) if window else 0
        for i in range(first // PAGE, end // PAGE + 1):  # pages before a window are given back
            row[i] = beginning[i] if i < shared else next(free)
            keys = np.arange(i * PAGE, (i + 1) * PAGE)
            seen[row[i]] |= (keys >= first) & (keys <= end)

    def cache(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        x = rng.standard_normal(shape).astype(np.float32)
        if dirty:
            x[~seen.reshape(-1)] = np.nan
        return x

    n_tok = sum(n for n, _ in seqs)
    where = np.concatenate([np.arange(past, past + n) for n, past in seqs])
    k, v = (Operand((seen.size, heads[1], hd), t, cache, role="state")
            for t in (dtype, v_dtype or dtype))  # fmt: skip
    q = Operand((n_tok, heads[0], hd), data=lambda rng, shape: rng.standard_normal(shape))
    single = next((i for i, (n, _) in enumerate(seqs) if n > 1), len(seqs))
    sink = Operand(heads[:1], data=lambda rng, n: sinks * rng.standard_normal(n), role="weight")
    return Case(
        (q, k, v, Operand((n_tok,), "i32", where if pos is None else pos),
         Operand((n_tok,), "i32", np.repeat(np.arange(len(seqs)), [n for n, _ in seqs])),
         Operand(table.shape, "i32", table), *([sink] if sinks else [])),
        {"scale": hd**-0.5, "n_single": single if told else 0, **params},
    )  # fmt: skip


def run(gpu: Any, c: Case) -> np.ndarray:
    built = build_case(op_spec("attention"), c, np.random.default_rng(1), oracle=False)
    return run_on(gpu, built)


def check(gpu: Any, c: Case) -> None:
    built = build_case(op_spec("attention"), c, np.random.default_rng(1))
    names = {s.dtype for s in c.srcs[1:3]}  # type: ignore[union-attr]
    assert nmse(run_on(gpu, built), built.expected) <= max(EXACT[t] for t in names)


def part(c: Case, tokens: slice, **params: Any) -> Case:
    """Only these tokens of a case."""
    q, k, v, pos, seq, table, *sinks = c.srcs
    assert q and pos and seq
    values = np.random.default_rng(2).standard_normal(q.shape).astype(np.float32)[tokens]
    some = [Operand((len(values),), "i32", np.asarray(o.data)[tokens]) for o in (pos, seq)]
    srcs = (Operand(values.shape, data=values), k, v, *some, table, *sinks)
    return Case(srcs, {**c.params, **params})


def run_part(gpu: Any, c: Case, tokens: slice, **params: Any) -> np.ndarray:
    """Runs of parts see the same cache: queries are drawn apart from it."""
    return run(gpu, part(c, tokens, **params))


SHAPES = [((8, 2), 128), ((8, 2), 64), ((6, 2), 128), ((7, 7), 64), ((32, 1), 64), ((20, 2), 64)]
# What the kernels for prompts take beside these, and what attention_decode.cu does.
PROMPTS = [((8, 2), 96), ((5, 5), 96), ((5, 5), 80), ((8, 4), 256), ((16, 2), 256),
           ((4, 2), 512)]  # fmt: skip
SINGLE = [((8, 4), 256), ((16, 2), 256), ((5, 5), 96), ((8, 2), 96), ((5, 5), 80),
          ((8, 2), 80)]  # fmt: skip
OPTIONS: list[dict[str, Any]] = [
    {}, {"window": 100}, {"softcap": 3.0}, {"max_bias": 8.0},
    {"window": 333, "softcap": 5.0, "max_bias": 4.0}, {"sinks": 4.0},
    {"window": 128, "softcap": 5.0, "sinks": 4.0},
]  # fmt: skip
RNG = np.random.default_rng(11)
MANY: dict[str, Seqs] = {
    "two": [(1, 40), (1, 900)],
    "singles": [(1, int(n)) for n in RNG.integers(0, 1500, 40)][: fewer(12, 40)],
    "few others": [(1, 70), (1, 640), (3, 500), (2, 0), (4, 127)],
    "singles and chunks": [*[(1, int(n)) for n in RNG.integers(0, 700, 9)], (70, 0), (5, 300),
                           (1, 200), (130, 411), (64, 64)],
    "short chunks": [(int(n), 100) for n in RNG.integers(1, 9, 60)][: fewer(20, 60)],
}  # fmt: skip
