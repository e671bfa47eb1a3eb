"""`gguflow generate`: continue a text."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Any

from .errors import INTERRUPTED, OK, UsageError
from .load import load_weights, note, open_source, prepare
from .options import (
    add_engine,
    add_model,
    add_profile,
    add_prompt,
    add_sampling,
    check_profile,
    engine_options,
    sampler_settings,
    whole,
)
from .profiling import new_profile, save_profile
from .prompt import prompt_text
from .stream import print_timings, stream, write

SUMMARY = "continue a text"
EPILOG = 'example: gguflow generate -p "Once upon a time" -n 200 -s 7'


def add_arguments(p: ArgumentParser) -> None:
    add_model(p)
    add_prompt(p)
    p.add_argument(
        "-n",
        "--n-predict",
        type=whole(-1),
        default=-1,
        metavar="N",
        help="tokens to generate; -1 until the text ends or the context is full (default)",
    )
    p.add_argument("--no-display-prompt", action="store_true", help="print only what is generated")
    p.add_argument(
        "--verbose-prompt", action="store_true", help="print the prompt's tokens on stderr first"
    )
    p.add_argument("--no-perf", action="store_true", help="no timings at the end")
    add_engine(p)
    add_sampling(p)
    add_profile(p)


def run(args: Namespace) -> int:
    settings = sampler_settings(args)
    profile_path = check_profile(args)
    text = prompt_text(args)
    began = time.perf_counter()
    model = prepare(open_source(args), engine_options(args))
    tokenizer = model.tokenizer
    ids = tokenizer.encode(text, parse_special=True)
    if not ids:
        raise UsageError("the prompt has no tokens: give one with -p or -f")
    model.check_prompt(ids)
    load_weights(model)
    if args.verbose_prompt:
        print_tokens(tokenizer, ids)
    profile = new_profile(model) if profile_path else None
    session = model.new_session(profile)
    loaded = time.perf_counter()
    if text and not args.no_display_prompt:
        write(text)
    made, interrupted = stream(session, tokenizer, ids, args.n_predict, settings, args.ignore_eos)
    if not (made or text).endswith("\n"):
        write("\n")
    n_asked = args.n_predict if args.n_predict >= 0 else model.options.n_ctx
    if session.timings.n_generated < n_asked and session.is_full:
        note(f"note: stopped because the context of {model.options.n_ctx} tokens is full")
    if not args.no_perf:
        print_timings(session.timings, loaded - began)
    if profile is not None and profile_path is not None:
        save_profile(profile, profile_path)
    return INTERRUPTED if interrupted else OK


def print_tokens(tokenizer: Any, ids: list[int]) -> None:
    """The tokens of a prompt on stderr, one a line."""
    note(f"prompt: {len(ids)} tokens")
    for token in ids:
        note(f"{token:6d} -> {tokenizer.token_text(token)!r}")
