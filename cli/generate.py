"""`gguflow generate`: continue a text."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguflow.engine.dataclass import replace

from .constraint_options import add_constraints, constraint, processor
from .errors import INTERRUPTED, OK, UsageError
from .keys_options import add_keys
from .llama_options import add_others
from .llama_texts import CONVERSATION, TAKEN_FOR_TEXT
from .load import begin, import_engine, load_weights, note, open_source, prepare
from .log_options import add_log, add_verbosity
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
from .options_values import some_text
from .profiling import new_profile, save_profile
from .prompt import check_writable, prompt_text, unescape
from .shift import add_shift, shift
from .speculation_options import add_speculation, set_speculation, speculation_settings
from .stream import add_raw, print_timings, stream, write, write_text

if TYPE_CHECKING:
    from gguflow.engine.session import Session
    from gguflow.models.tokenizer import Tokenizer

SUMMARY = "continue a text"
ELSEWHERE = dict.fromkeys(("-cnv", "--conversation", "-st", "--single-turn"), "chat")
EPILOG = 'example: gguflow generate -p "Once upon a time" -n 200 -s 7'


def add_arguments(p: ArgumentParser) -> None:
    add_model(p)
    add_prompt(p)
    p.add_argument(
        "-n",
        "--n-predict",
        "--predict",
        type=whole(-2),
        default=-1,
        metavar="N",
        help="tokens to generate; -1 until the text ends or the context is full (default)",
    )
    p.add_argument(
        "-r",
        "--reverse-prompt",
        action="append",
        default=[],
        type=some_text,
        metavar="TEXT",
        help="end before this text; may be given more than once",
    )
    p.add_argument("--no-display-prompt", action="store_true", help="print only what is generated")
    p.add_argument(
        "--verbose-prompt", action="store_true", help="print the prompt's tokens on stderr first"
    )
    p.add_argument("-sp", "--special", action="store_true", help="show control tokens in the text")
    add_raw(p)
    p.add_argument("--no-perf", action="store_true", help="no timings at the end")
    p.add_argument(
        "-no-cnv", "--no-conversation", action="store_true", help="what this command does anyway"
    )
    add_prompt_cache(p)
    add_shift(p)
    add_engine(p)
    add_keys(p)
    add_sampling(p)
    add_constraints(p)
    add_speculation(p)
    add_profile(p)
    add_verbosity(p)
    add_log(p)
    add_others(p, CONVERSATION, TAKEN_FOR_TEXT)


def add_prompt_cache(p: ArgumentParser) -> None:
    """--prompt-cache."""
    p.add_argument(
        "--prompt-cache",
        metavar="FILE",
        help="keep the prompt's state in this file, and begin with what it holds already",
    )
    p.add_argument(
        "--prompt-cache-all", action="store_true", help="keep what was generated in it too"
    )
    p.add_argument("--prompt-cache-ro", action="store_true", help="do not write it")


def run(args: Namespace) -> int:
    import_engine()
    from gguflow.engine.sampling import seed_of
    from gguflow.engine.serving.request import Request

    begin(args)
    settings = sampler_settings(args)
    asked = constraint(args)
    speculation = speculation_settings(args)
    profile_path = check_profile(args)
    if args.prompt_cache is not None and not args.prompt_cache_ro:
        check_writable(args.prompt_cache, "--prompt-cache")
    text = prompt_text(args)
    began = time.perf_counter()
    model = prepare(open_source(args), engine_options(args))
    tokenizer = model.tokenizer
    check_length(text, tokenizer, model.options.n_ctx)
    for token, _ in args.logit_bias:
        if token >= model.hp.n_vocab:
            raise UsageError(f"-l {token}: the vocabulary has {model.hp.n_vocab} tokens")
    ids = tokenizer.encode(text, parse_special=True)
    if not ids:
        raise UsageError("the prompt has no tokens: give one with -p or -f")
    model.check_prompt(ids)
    goes_on = shift(args, model, len(ids))
    within = processor(asked, model, len(ids))
    load_weights(model, quiet=not args.verbose)
    set_speculation(model, args, speculation)
    if args.verbose_prompt:
        print_tokens(tokenizer, ids)
    profile = new_profile(model) if profile_path else None
    session = model.new_session(profile)
    if args.prompt_cache is not None:
        load_cache(session, args.prompt_cache)
    loaded = time.perf_counter()
    if settings.seed is None and settings.temperature > 0:
        settings = replace(settings, seed=seed_of(settings))
        note(f"seed: {settings.seed}")
    if text and not args.no_display_prompt:
        write_text(text, args.raw)
    stop = frozenset() if args.ignore_eos else frozenset(tokenizer.eog_ids)
    most = max(-1, args.n_predict)
    request = Request(ids, most, settings, stop, logit_bias=dict(args.logit_bias), processor=within)
    stops = [t if args.no_escape else unescape(t) for t in args.reverse_prompt]
    made, interrupted = stream(session, request, stops, args.special, args.raw, goes_on)
    if not (made or text).endswith("\n"):
        write("\n")
    n_asked = most if most >= 0 else model.options.n_ctx
    if session.timings.n_generated < n_asked and session.is_full:
        note(f"note: stopped because the context of {model.options.n_ctx} tokens is full")
    if goes_on is not None and goes_on.n_left_out:
        note(f"note: the context was full: {goes_on.n_left_out} tokens were left out")
    session.save_lookup()
    if args.prompt_cache is not None and not args.prompt_cache_ro:
        timings = session.timings
        if not args.prompt_cache_all:
            session.rewind(len(ids))
        session.save(args.prompt_cache)
        session.timings = timings
    if not args.no_perf:
        print_timings(session.timings, loaded - began)
    if profile is not None and profile_path is not None:
        save_profile(profile, profile_path)
    return INTERRUPTED if interrupted else OK


def check_length(text: str, tokenizer: Tokenizer, n_ctx: int) -> None:
    """Refuse a text that cannot fit whatever its tokens are, before they are looked for."""
    if len(text) <= 64 * n_ctx:
        return
    longest = max(len(tokenizer.token_text(i)) for i in range(tokenizer.n_vocab))
    if len(text) > longest * n_ctx:
        from gguflow.engine.prompt import ContextError

        raise ContextError(
            f"the prompt has {len(text)} characters, more than {n_ctx} tokens can be; raise "
            "`n_ctx` or shorten the prompt"
        )


def load_cache(session: Session, path: str) -> None:
    """Take up a prompt's state, where there is one."""
    file = Path(path).expanduser()
    if not file.is_file():
        return
    session.load(file)
    note(f"{path}: {session.n_tokens} tokens are known already")


def print_tokens(tokenizer: Any, ids: list[int]) -> None:
    """The tokens of a prompt on stderr, one a line."""
    note(f"prompt: {len(ids)} tokens")
    for token in ids:
        note(f"{token:6d} -> {tokenizer.token_text(token)!r}")
