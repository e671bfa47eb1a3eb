"""`gguflow profile`: where the time of a prompt and a generation goes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .errors import OK, UsageError
from .load import load_weights, open_source, prepare
from .options import (
    add_engine,
    add_model,
    add_profile,
    add_random,
    check_profile,
    engine_options,
    whole,
)
from .profiling import new_profile, save_profile
from .prompt import random_ids, unescape
from .ray_options import add_stages

if TYPE_CHECKING:
    from gguflow.engine.model import Model
    from gguflow.engine.profile import Recording

SUMMARY = "show where the time goes, by op, module or layer"
EPILOG = """\
A warmup run goes before. GB/s and GFLOP/s are held against this machine's measured peaks.

examples:
  gguflow profile -m model.gguf --pp 128 --tg 32 --by module
  gguflow profile --random tinyllama-1.1b:Q4_0 --profile before.jsonl
  gguflow profile --diff before.jsonl after.jsonl"""

GROUPINGS = ("op", "module", "layer")
SPARSE = "sparse"
ACTIVITY_TOKENS = 256  # enough for shares; every gate is computed for them
PHASES = ("prefill", "decode")


def add_arguments(p: ArgumentParser) -> None:
    add_model(p)
    add_random(p)
    p.add_argument("-p", "--prompt", metavar="TEXT", help="a prompt, in place of --pp")
    p.add_argument("--pp", type=whole(0), metavar="N", help="random prompt tokens (default 64)")
    p.add_argument(
        "--tg",
        "-n",
        type=whole(0),
        default=32,
        metavar="N",
        help="tokens to generate, one a step (default 32)",
    )
    p.add_argument(
        "--from", dest="dump", metavar="FILE", help="print a .jsonl profile; run nothing"
    )
    p.add_argument(
        "--diff", nargs=2, metavar=("A", "B"), help="compare two .jsonl profiles; run nothing"
    )
    add_profile(p)
    g = p.add_argument_group("table")
    g.add_argument(
        "--by",
        choices=(*GROUPINGS, SPARSE),
        help="one table; default: by op, module and layer, and of a ReLU model its sparse layers",
    )
    g.add_argument("--phase", choices=PHASES, help="only the prompt's steps or the generation's")
    g.add_argument(
        "--limit",
        type=whole(1),
        default=20,
        metavar="N",
        help="rows of a table; the rest is one row (default 20)",
    )
    add_engine(p)
    add_stages(p)


def run(args: Namespace) -> int:
    if args.dump is not None or args.diff is not None:
        return show_files(args)
    from gguflow.engine.variants.relu.tools.activity import measure_activity

    path = check_profile(args)
    model = prepare(open_source(args), engine_options(args), args)
    prompt = prompt_ids(args, model)
    n_tokens = len(prompt) + args.tg
    if n_tokens == 0:
        raise UsageError("--pp and --tg are 0: nothing to run")
    if n_tokens > model.options.n_ctx:
        raise UsageError(
            f"--pp and --tg: {n_tokens} tokens do not fit the context of {model.options.n_ctx}; "
            "raise -c"
        )
    load_weights(model)
    profile = new_profile(model)
    session = model.new_session()
    generated = random_ids(args.tg, model.hp.n_vocab)
    for recorder in (None, profile):  # the first pass makes plans and brings pages in
        session.rewind(0)
        session.profile = recorder
        if prompt:
            session.prefill(prompt, None, "last")
        for token in generated[: 1 if recorder is None else None]:
            session.step((token,), "last")
    profile.activity += measure_activity(model, [*prompt, *generated][:ACTIVITY_TOKENS])
    show(profile, args)
    if path is not None:
        save_profile(profile, path)
    return OK


def prompt_ids(args: Namespace, model: Model) -> list[int]:
    """The tokens of -p, or --pp random ones."""
    if args.prompt is None:
        n = 64 if args.pp is None else args.pp
        return random_ids(n, model.hp.n_vocab)
    if args.pp is not None:
        raise UsageError("-p/--prompt and --pp exclude each other")
    if args.random is not None:
        raise UsageError("-p/--prompt: --random models have no tokenizer; use --pp")
    ids: list[int] = model.tokenizer.encode(unescape(args.prompt), parse_special=True)
    return ids


def show_files(args: Namespace) -> int:
    """--from and --diff."""
    if args.dump is not None and args.diff is not None:
        raise UsageError("--from and --diff exclude each other")
    from gguflow.engine.profile import load_jsonl, print_diff

    if args.dump is not None:
        show(load_jsonl(args.dump), args)
    else:
        before, after = map(load_jsonl, args.diff)
        print_diff(before, after, console(), args.limit)
    return OK


def show(recording: Recording, args: Namespace) -> None:
    """The tables on standard output."""
    from gguflow.engine.profile import print_sparse_table, print_table
    from gguflow.engine.profile.sparse import is_sparse

    out = console()
    h = recording.header
    out.print(f"{h.model}, {h.machine}, {h.threads} threads", highlight=False, markup=False)
    groupings: Sequence[str] = (args.by,) if args.by else GROUPINGS
    for by in groupings:
        if by != SPARSE:
            print_table(recording, out, by, args.phase, args.limit)
    if args.by == SPARSE or (args.by is None and is_sparse(recording)):
        print_sparse_table(recording, out, args.phase)


def console():  # type: ignore[no-untyped-def]
    """Standard output, wide enough for a table where it is no terminal."""
    import sys

    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120)
