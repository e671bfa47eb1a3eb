"""`gguflow bench`: tokens a second, by llama-bench's rules.

A test is repeated; what is timed is the computation alone, without tokenization and sampling, on
random tokens. One warmup run goes before, so that plans are made and pages are in memory.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, Any

from gguflow.engine.dataclass import replace
from gguflow.engine.limits import MAX_SEQS, MAX_THREADS

from .bench_grid import BenchTest, Extend, grid, layer_counts, numbers, pair, shares, words
from .bench_kernels import run_kernels
from .bench_model import facts, load, settings
from .bench_output import OUTPUTS, Output, record
from .bench_sequences import run_sequences
from .bench_serve import add_serve, run_serve
from .bench_speculate import run_speculate
from .errors import OK, UsageError
from .load import bundled_model, check_context, gpu, note, random_source
from .options import (
    add_device,
    add_profile,
    add_sparse,
    cache_type,
    check_profile,
    whole,
)
from .profiling import new_profile, save_profile
from .prompt import random_ids
from .ray_options import add_stages
from .speculation_options import add_draft

if TYPE_CHECKING:
    from gguflow.engine.profile import Profile
    from gguflow.engine.session import Session

SUMMARY = "measure tokens per second"
WARMUP_SAMPLED = 8  # tokens that make a GPU run ahead of the host, as a generation does
REPETITIONS = 5
EPILOG = """\
Lists are separated by commas, options can be given again, ranges are 1-8, 1-9+2 or 1-8*2; every
combination is run. Results go to standard output.

--sequences computes prompts of -npp tokens in so many sequences, then -ntg tokens for each, as
llama-batched-bench does, but with tokens chosen and fed back, as an engine has to: PP, TG and B are
the tokens of a prompt, those generated after it and the sequences; T seconds, S tokens a second.

--speculate generates from random prompts (-npp, -ntg, --sequences) plainly and with guesses that
come true with the given probabilities; -md or --random-draft is run for its time, without either
guesses are free, as those of a lookup are.

--kernels times single kernels on cold caches: the median of their times, what moved and was
computed a second, the time this machine's measured peaks allow and which peak sets it, and the time
of cuBLAS or CuPy where they have the same operation.

--serve puts load on an OpenAI endpoint, this project's or another's: streamed completions of -ntg
tokens after prompts of -npp, and the time to the first text and between two pieces of it.

examples:
  gguflow bench --random tinyllama-1.1b:Q4_0,tinyllama-1.1b:Q4_K_M -p 128 -n 32 -t 1,2
  gguflow bench -m model.gguf -ngl 0,16,all -d 0,4096
  gguflow bench -m model.gguf --sequences 1,4,16 -npp 128 -ntg 128
  gguflow bench --random llama3-8b:Q4_0 --random-draft llama3.2-1b:Q4_0 -ngl all --speculate 0,0.7
  gguflow bench --serve http://127.0.0.1:8080 --clients 1,8,64 -npp 128 -ntg 64
  gguflow bench --kernels 'mul_mat q4_0' --backend cuda"""


def add_arguments(p: ArgumentParser) -> None:
    def many(*names: str, type: Any, default: Any, metavar: str, help: str, **named: Any) -> None:
        p.add_argument(
            *names, type=type, default=default, action=Extend, metavar=metavar, help=help, **named
        )

    many("-m", "--model", type=words(), default=[], metavar="FILE", help="GGUF models")
    many(
        "--random",
        type=words(),
        default=[],
        metavar="SHAPE:TYPE",
        help="random weights in a named shape instead of a file",
    )
    many(
        "-p",
        "--n-prompt",
        type=numbers(0),
        default=[512],
        metavar="N",
        help="prompt tests: tokens; 0 for none (default 512)",
    )
    many(
        "-n",
        "--n-gen",
        type=numbers(0),
        default=[128],
        metavar="N",
        help="generation tests: tokens; 0 for none (default 128)",
    )
    many("-pg", type=pair, default=[], metavar="PP,TG", help="tests of a prompt and a generation")
    many(
        "-d",
        "--n-depth",
        type=numbers(0),
        default=[0],
        metavar="N",
        help="tokens in the context before a test (default 0)",
    )
    many("--sequences", "-npl", type=numbers(1, MAX_SEQS), default=[], metavar="N",
         help="many sequences at once, by llama-batched-bench's rules")  # fmt: skip
    many("-npp", dest="n_prompts", type=numbers(1), default=[128], metavar="N",
         help="with --sequences or --serve: tokens of each prompt (default 128)")  # fmt: skip
    many("-ntg", dest="n_gens", type=numbers(0), default=[128], metavar="N",
         help="with --sequences or --serve: tokens generated after each (default 128)")  # fmt: skip
    many("--speculate", type=shares, default=[], metavar="P",
         help="guess tokens, of which this share comes true")  # fmt: skip
    add_draft(p)
    p.add_argument("--random-draft", metavar="SHAPE:TYPE", help="random weights instead of -md")
    many("-b", "--batch-size", type=numbers(1), default=[2048], metavar="N", help="(default 2048)")
    many("-ub", "--ubatch-size", type=numbers(1), default=[512], metavar="N", help="(default 512)")
    many(
        "-ctk",
        "--cache-type-k",
        type=words(cache_type),
        default=["f16"],
        metavar="TYPE",
        help="(default f16)",
    )
    many(
        "-ctv",
        "--cache-type-v",
        type=words(cache_type),
        default=["f16"],
        metavar="TYPE",
        help="(default f16)",
    )
    many(
        "-t",
        "--threads",
        type=numbers(1, MAX_THREADS),
        default=[],
        metavar="N",
        help="(default all processors)",
    )
    many(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        type=layer_counts,
        default=[0],
        metavar="N",
        help="layers on the GPU: numbers, auto or all (default 0)",
    )
    add_device(p)
    add_sparse(p)
    p.add_argument(
        "-r",
        "--repetitions",
        type=whole(1),
        metavar="N",
        help="of each test (default 5, with --sequences 1)",
    )
    p.add_argument("-o", "--output", choices=list(OUTPUTS), default="md", help="(default md)")
    p.add_argument("--no-fuse", action="store_true", help="run every op by itself")
    p.add_argument("--no-warmup", action="store_true", help="no warmup run before a test")
    p.add_argument(
        "--sample",
        action="store_true",
        help="generate as the other commands do: the most likely token is chosen and comes next, "
        "which a GPU does by itself; by default tokens are random and none is chosen",
    )
    p.add_argument("--progress", action="store_true", help="say on stderr what is being run")
    p.add_argument(
        "--kernels",
        nargs="?",
        const="",
        metavar="PATTERN",
        help="time single kernels instead, those whose line in the table matches",
    )
    p.add_argument(
        "--backend",
        default="cpu",
        metavar="NAME",
        help="what --kernels runs on: see `gguflow devices` (default cpu)",
    )
    add_profile(p)
    add_stages(p)
    add_serve(p)


def run(args: Namespace) -> int:
    if args.serve is not None:
        return run_serve(args)
    if args.kernels is not None:
        compact = args.compact_weights != "auto"
        for flag, given in (("-o sql", args.output == "sql"), ("--compact-weights", compact)):
            if given:
                raise UsageError(f"{flag}: not with --kernels")
        return run_kernels(args)
    profile_path = check_profile(args)
    from gguflow.engine.load import open_model
    from gguflow.engine.options import Options
    from gguflow.engine.profile.machine import cores

    files = args.model if args.model or args.random else [str(bundled_model())]
    # All are opened first: a name that is wrong should not show after an hour of measuring.
    sources = [open_model(f) for f in files] + [random_source(s) for s in args.random]
    if args.speculate:
        return run_speculate(args, sources)
    for flag, given in (("-md", args.model_draft), ("--random-draft", args.random_draft)):
        if given is not None:
            raise UsageError(f"{flag}: only with --speculate")
    if args.sequences:
        return run_sequences(args, sources)
    for flag, name in (("-npp", "n_prompts"), ("-ntg", "n_gens")):
        if name in getattr(args, "_given", ()):
            raise UsageError(f"{flag}: only with --sequences")
    tests = grid(args, cores())
    if not tests:
        raise UsageError("nothing to run: -p and -n are 0 and there is no -pg")
    for source in sources:
        for t in tests:
            check_context(source, Options(**settings(t)))
    out = OUTPUTS[args.output]()
    profile: Profile | None = None
    out.begin(tests)
    number = 0
    try:
        for source, layers in product(sources, dict.fromkeys(t.n_gpu_layers for t in tests)):
            placed = [t for t in tests if t.n_gpu_layers == layers]
            model = load(source, placed, args)
            if profile_path and profile is None:
                profile = new_profile(model)
            for t in placed:
                number += 1
                if args.progress:
                    note(f"bench: {number}/{len(sources) * len(tests)}: {source.path} {t.name}")
                session = model.with_options(**settings(t)).new_session()
                if layers < 0:
                    t = replace(t, n_gpu_layers=model.n_gpu_layers)
                measure(session, t, args, profile, facts(model, source, args), out)
            del model, session  # before the next one comes into memory
    finally:
        out.end()
        if profile is not None and profile_path is not None:
            save_profile(profile, profile_path)
    return OK


def measure(
    session: Session,
    test: BenchTest,
    args: Namespace,
    profile: Profile | None,
    known: dict[str, Any],
    out: Output,
) -> None:
    """Run one test and write its result."""
    ids = random_ids(test.n_ctx, session.model.hp.n_vocab)
    depth, prompt = ids[: test.n_depth], ids[test.n_depth : test.n_depth + test.n_prompt]
    generated = ids[test.n_depth + test.n_prompt :]
    if depth:
        session.prefill(depth, None, "none")
    # On a device the first run of a plan launches op by op and the second captures a graph.
    for _ in range(0 if args.no_warmup else 2 if gpu(session.model) else 1):
        session.rewind(test.n_depth)
        run_once(session, test, prompt, generated[: WARMUP_SAMPLED if test.sampled else 1])
    began = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    session.profile = profile
    ns = []
    for _ in range(args.repetitions or REPETITIONS):
        session.rewind(test.n_depth)
        start = time.perf_counter_ns()
        run_once(session, test, prompt, generated)
        ns.append(time.perf_counter_ns() - start)
    out.add(record(known, test, began, ns))


def run_once(
    session: Session, test: BenchTest, prompt: Sequence[int], generated: Sequence[int]
) -> None:
    """What is timed. generated: random tokens; of a sampled test, the first is the last given."""
    if prompt:
        session.prefill(prompt, None, "last")
    if test.sampled and generated:
        from gguflow.engine.sampling import GREEDY

        for _ in session.generate([*session.tokens, generated[0]], len(generated), GREEDY):
            pass
        return
    for token in generated:
        session.step((token,), "last")
