"""`gguflow bench --speculate`: how much guessing gains, at a planted acceptance.

Random weights agree about nothing, so guesses are made up: each is the token that the model itself
will choose with the probability asked for, and another one otherwise. A draft model is run as well,
for the time it takes; without one guesses cost nothing, as a lookup's do. The same prompts are
generated from plainly in turn with that, and every text must be the plain one.

What is timed is a device that has all its plans: a repetition in which one was made, as lengths of
guesses are chosen while it runs, is made again.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from statistics import mean
from typing import TYPE_CHECKING, Any

from .bench_grid import SequencesTest
from .bench_model import cache_rows, facts, load, settings
from .bench_output import Csv, HeadedTable, Json, JsonLines, Sql
from .errors import CHECK_FAILED, OK, UsageError
from .load import note, random_source

if TYPE_CHECKING:
    from gguflow.engine.backends.base import Backend
    from gguflow.engine.load import ModelSource
    from gguflow.engine.model import Model
    from gguflow.engine.serving.engine import Engine
    from gguflow.engine.serving.speculation import Drafting

MOST_RUNS = 12  # generations, until one is as a device has them in the long run

_COLUMNS = (
    ("PP", "pp", 5, ""), ("TG", "tg", 5, ""), ("B", "pl", 4, ""), ("planted", "planted", 7, ".2f"),
    ("plain t/s", "plain", 9, ".2f"), ("guessed t/s", "guessed", 11, ".2f"),
    ("gain", "gain", 6, ".3f"), ("accepted", "acceptance", 8, ".3f"),
    ("a round", "per_round", 7, ".2f"), ("drafted", "drafted", 7, ""), ("wasted", "wasted", 6, ""),
)  # fmt: skip


def _header(result: dict[str, Any]) -> str:
    return (
        f"{result['model_type']}, guesses by {result['draft'] or 'lookup'}, at most "
        f"{result['draft_max']}, n_gpu_layers = {result['n_gpu_layers']}, "
        f"n_threads = {result['n_threads']}"
    )


_OUTPUTS: dict[str, Callable[[], Any]] = {
    "md": lambda: HeadedTable(_header, _COLUMNS), "csv": Csv, "json": Json,
    "jsonl": JsonLines, "sql": Sql,
}  # fmt: skip


def run_speculate(args: Namespace, sources: Sequence[ModelSource]) -> int:
    """Run every test and write its result."""
    from gguflow.engine.profile.machine import cores

    if args.random_draft is not None and args.model_draft is not None:
        raise UsageError("-md and --random-draft exclude each other")
    chosen = product(
        args.n_prompts, args.n_gens, args.sequences or [1], args.batch_size[:1],
        args.ubatch_size[:1], args.threads or [cores()], args.cache_type_k[:1],
        args.cache_type_v[:1], args.gpu_layers,
    )  # fmt: skip
    tests = [SequencesTest(*values) for values in chosen]
    if not all(t.n_gen > 1 for t in tests):
        raise UsageError("-ntg: --speculate measures two tokens or more")
    out = _OUTPUTS[args.output]()
    same = True
    try:
        for source, layers in product(sources, dict.fromkeys(t.n_gpu_layers for t in tests)):
            placed = [t for t in tests if t.n_gpu_layers == layers]
            model = load(source, placed, args)
            draft = _draft(model, args)
            for test in placed:
                if args.progress:
                    note(f"bench: {source.path} {test}")
                for result in measure(model, source, draft, test, args):
                    same = same and result.pop("same")
                    out.add(result)
            del model, draft
    finally:
        out.end()
    if not same:
        note("a text that was guessed is not the plain one")
    return OK if same else CHECK_FAILED


def _draft(model: Model, args: Namespace) -> Model | None:
    changes = {} if args.gpu_layers_draft is None else {"n_gpu_layers": args.gpu_layers_draft}
    if args.random_draft is not None:
        return model.load_draft(random_source(args.random_draft), **changes)
    if args.model_draft is not None:
        return model.load_draft(args.model_draft, **changes)
    return None


def measure(
    model: Model,
    source: ModelSource,
    draft: Model | None,
    test: SequencesTest,
    args: Namespace,
) -> list[dict[str, Any]]:
    """A result for every acceptance: tokens a second of all sequences, means of the repetitions."""
    from gguflow.engine.serving.engine import Engine
    from gguflow.engine.serving.speculation import Speculation
    from gguflow.engine.serving.speculation_draft import DraftModel
    from gguflow.engine.serving.speculation_planted import Planted

    chosen = settings(test) | {"n_cache": cache_rows(test.n_ctx, test.n_seqs)}
    model = model.with_options(**chosen)
    prompts = _prompts(test, model.hp.n_vocab)
    models = [model] if draft is None else [model, draft]
    run = partial(_settled, [b for m in models for b in m.backends.values()], prompts, test)
    model.speculate(None)
    plain = Engine(model, prompts_first=True)
    texts, _, _ = run(plain)[-1]
    known = [[*p, *t] for p, t in zip(prompts, texts, strict=True)]
    found = []
    for share in args.speculate:
        inner = None if draft is None else DraftModel(draft, model)
        planted = Planted(known, share, model.hp.n_vocab, inner=inner)
        model.speculate(Speculation(drafter=planted, most=args.draft_max, least=args.draft_min))
        engine = Engine(model, prompts_first=True)
        model.speculate(None)
        same = all(t == texts for t, _, _ in run(engine))
        drafted = accepted = rounds = 0
        seconds: tuple[list[float], list[float]] = [], []
        for _ in range(args.repetitions or 1):
            seconds[0].append(run(plain)[-1][1])
            runs = run(engine)
            same = same and all(t == texts for t, _, _ in runs)
            _, s, d = runs[-1]
            seconds[1].append(s)
            drafted, accepted = drafted + d.drafted, accepted + d.accepted
            rounds += d.rounds
        n_tokens = test.n_seqs * (test.n_gen - 1)
        t_plain, t_guessed = mean(seconds[0]), mean(seconds[1])
        found.append(facts(model, source, args) | {
            "draft": "" if draft is None else draft.source.path, "draft_max": args.draft_max,
            "n_gpu_layers": test.n_gpu_layers, "n_threads": model.n_threads,
            "type_k": test.type_k, "type_v": test.type_v,
            "pp": test.n_prompt, "tg": test.n_gen, "pl": test.n_seqs, "planted": share,
            "plain": n_tokens / t_plain, "guessed": n_tokens / t_guessed,
            "gain": t_plain / t_guessed, "acceptance": accepted / drafted if drafted else 0.0,
            "per_round": 1 + accepted / (rounds * test.n_seqs) if rounds else 1.0,
            "drafted": drafted, "accepted": accepted, "wasted": drafted - accepted, "same": same,
        })  # fmt: skip
    return found


def _settled(
    backends: Sequence[Backend],
    prompts: Sequence[Sequence[int]],
    test: SequencesTest,
    engine: Engine,
) -> list[tuple[list[list[int]], float, Drafting]]:
    """Runs up to one in which no device had to make anything: of each its texts, its seconds, and
    what came of its guesses."""
    from gguflow.engine.serving.speculation import Drafting

    runs = []
    for _ in range(MOST_RUNS):
        n_made, before = sum(b.n_made for b in backends), engine.stats.drafting
        texts, seconds = run_once(engine, prompts, test)
        after = engine.stats.drafting
        d = Drafting(after.rounds - before.rounds, after.drafted - before.drafted,
                     after.accepted - before.accepted)  # fmt: skip
        runs.append((texts, seconds, d))
        if sum(b.n_made for b in backends) == n_made:
            break
    return runs


def _prompts(test: SequencesTest, n_vocab: int) -> list[list[int]]:
    import numpy as np

    shape = test.n_seqs, test.n_prompt
    ids: list[list[int]] = np.random.default_rng(0).integers(0, n_vocab, shape).tolist()
    return ids


def run_once(
    engine: Engine, prompts: Sequence[Sequence[int]], test: SequencesTest
) -> tuple[list[list[int]], float]:
    """The texts, and the seconds from when all had their first token."""
    from gguflow.engine.sampling import SamplerSettings
    from gguflow.engine.serving.request import Request

    # Sampled, as texts are by default, so that random weights do not settle on one token.
    settings = SamplerSettings(seed=1)
    ids = [engine.add(Request(p, test.n_gen, settings)) for p in prompts]
    texts: dict[int, list[int]] = {i: [] for i in ids}

    def take() -> int:
        n = 0
        for token in engine.step():
            n += token.index == 0
            assert token.id is not None
            texts[token.request].append(token.id)
        return n

    n_begun = 0
    while n_begun < len(ids):
        n_begun += take()
    began = time.perf_counter()
    while engine.has_work:
        take()
    return [texts[i] for i in ids], time.perf_counter() - began
