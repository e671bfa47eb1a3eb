"""`gguflow bench --sequences`: many sequences at once, by llama-batched-bench's rules.

All prompts are computed, then every sequence gets its tokens, in runs that hold one of each. It is
the engine that does so: tokens are chosen (the most likely ones) and come next, where
llama-batched-bench feeds random ones and chooses none. The first token comes out of the prompt's
last run, so N more take N runs.
"""

from __future__ import annotations

import gc
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from itertools import count, product
from statistics import mean
from typing import TYPE_CHECKING, Any

from gguflow.engine.dataclass import replace

from .bench_grid import SequencesTest, sequences_grid
from .bench_model import cache_rows, facts, load, settings
from .bench_output import Csv, HeadedTable, Json, JsonLines, Sql
from .errors import OK, UsageError
from .load import check_context, gpu, note

if TYPE_CHECKING:
    from gguflow.engine.load import ModelSource
    from gguflow.engine.model import Model
    from gguflow.engine.serving.engine import Engine

WARMUP = 8  # tokens of a warmup, so that a GPU runs ahead of the host
_SINGLE = {"n_prompt": "-p", "n_gen": "-n", "pg": "-pg", "n_depth": "-d"}
_COLUMNS = (
    ("PP", "pp", 6, ""), ("TG", "tg", 6, ""), ("B", "pl", 4, ""), ("N_KV", "n_kv", 6, ""),
    ("T_PP s", "t_pp", 8, ".3f"), ("S_PP t/s", "speed_pp", 8, ".2f"),
    ("T_TG s", "t_tg", 8, ".3f"), ("S_TG t/s", "speed_tg", 8, ".2f"),
    ("T s", "t", 8, ".3f"), ("S t/s", "speed", 8, ".2f"),
)  # fmt: skip


def _header(result: dict[str, Any]) -> str:
    return result["model_type"] + "".join(
        f", {name} = {result[name]}"
        for name in ("n_batch", "n_ubatch", "n_gpu_layers", "n_threads", "type_k", "type_v")
    )


_OUTPUTS: dict[str, Callable[[], Any]] = {
    "md": lambda: HeadedTable(_header, _COLUMNS), "csv": Csv, "json": Json,
    "jsonl": JsonLines, "sql": Sql,
}  # fmt: skip


def run_sequences(args: Namespace, sources: Sequence[ModelSource]) -> int:
    """Run every test and write its result."""
    from gguflow.engine.options import Options
    from gguflow.engine.profile.machine import cores

    given = [_SINGLE[name] for name in _SINGLE if name in getattr(args, "_given", ())]
    if given or args.sample or args.profile:
        what = [*given, *["--sample"] * args.sample, *["--profile"] * bool(args.profile)]
        raise UsageError(f"{', '.join(what)}: not with --sequences, which has -npp and -ntg")
    tests = sequences_grid(args, cores())
    for source, test in product(sources, tests):
        check_context(source, Options(**settings(test)))
    out = _OUTPUTS[args.output]()
    try:
        for source, layers in product(sources, dict.fromkeys(t.n_gpu_layers for t in tests)):
            placed = [t for t in tests if t.n_gpu_layers == layers]
            model = load(source, placed, args)
            for test in placed:
                if args.progress:
                    note(f"bench: {source.path} {test}")
                if layers < 0:
                    test = replace(test, n_gpu_layers=model.n_gpu_layers)
                result = facts(model, source, args) | measure(model, test, args)
                out.add(result | {"type_k": test.type_k, "type_v": test.type_v})
                gc.collect()  # the test's cache, before the next one comes into memory
            del model  # before the next one comes into memory
    finally:
        out.end()
    return OK


def measure(model: Model, test: SequencesTest, args: Namespace) -> dict[str, Any]:
    """A test's result, under llama-batched-bench's names: mean seconds of all repetitions."""
    from gguflow.engine.serving.engine import Engine

    chosen = settings(test) | {"n_cache": cache_rows(test.n_ctx, test.n_seqs)}
    engine = Engine(model.with_options(**chosen), prompts_first=True)
    runs = count()  # each with prompts of its own, so that none is found in the cache
    # On a device the first run of a plan launches op by op and the second captures a graph.
    for _ in range(0 if args.no_warmup else 2 if gpu(model) else 1):
        run_once(engine, replace(test, n_gen=min(test.n_gen, WARMUP)), next(runs))
    repetitions = args.repetitions or 1
    times = [run_once(engine, test, next(runs)) for _ in range(repetitions)]
    t_pp, t_tg = (mean(t) for t in zip(*times, strict=True))
    pp, tg, pl = test.n_prompt, test.n_gen, test.n_seqs
    n_threads = engine.model.n_threads
    return {
        "n_kv_max": chosen["n_cache"], "n_batch": test.n_batch, "n_ubatch": test.n_ubatch,
        "is_pp_shared": 0, "n_gpu_layers": test.n_gpu_layers, "n_threads": n_threads,
        "n_threads_batch": n_threads, "pp": pp, "tg": tg, "pl": pl, "n_kv": pl * (pp + tg),
        "t_pp": t_pp, "speed_pp": pl * pp / t_pp, "t_tg": t_tg,
        "speed_tg": pl * tg / t_tg if tg else 0.0,
        "t": t_pp + t_tg, "speed": pl * (pp + tg) / (t_pp + t_tg),
    }  # fmt: skip


def run_once(engine: Engine, test: SequencesTest, seed: int) -> tuple[float, float]:
    """Seconds that the prompts took, and the tokens after them."""
    import numpy as np

    from gguflow.engine.sampling import GREEDY
    from gguflow.engine.serving.request import Request

    shape = test.n_seqs, test.n_prompt
    prompts = np.random.default_rng(seed).integers(0, engine.model.hp.n_vocab, shape).tolist()
    for ids in prompts:
        engine.add(Request(ids, test.n_gen + 1, GREEDY))
    began = time.perf_counter()
    n_begun = 0
    while n_begun < test.n_seqs:
        n_begun += sum(token.index == 0 for token in engine.step())
    middle = time.perf_counter()
    while engine.has_work:
        engine.step()
    return middle - began, time.perf_counter() - middle
