"""`gguflow chat`: a conversation in the model's own format."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .constraint_options import add_constraints, answers_within, constraint
from .errors import INTERRUPTED, OK, UsageError
from .keys_options import add_keys
from .llama_options import add_others
from .llama_texts import TAKEN_FOR_CHAT, TEXT
from .load import begin, import_engine, load_weights, note, open_source, prepare
from .log_options import add_log, add_verbosity
from .options import (
    add_engine,
    add_model,
    add_profile,
    add_sampling,
    check_profile,
    engine_options,
    sampler_settings,
    whole,
)
from .options_values import some_text
from .profiling import new_profile, save_profile
from .prompt import read_file, unescape
from .speculation_options import add_speculation, set_speculation, speculation_settings
from .stream import add_raw, print_timings
from .surroundings import add_surroundings, surroundings
from .template_options import add_template_variables

if TYPE_CHECKING:
    from gguflow.engine.model import Model
    from gguflow.models.chat import ChatTemplate

    from .talk.commands import Talk
    from .talk.reader import Reader

SUMMARY = "talk with a model, turn by turn"
ELSEWHERE = dict.fromkeys(("-no-cnv", "--no-conversation"), "generate")
EPILOG = (
    "/help lists the commands; /bye ends the conversation, as end of input (Ctrl-D) does.\n"
    "Ctrl-C stops an answer or clears a half-typed line; on an empty one it ends the program."
)


def add_arguments(p: ArgumentParser) -> None:
    add_model(p)
    g = p.add_mutually_exclusive_group()
    g.add_argument("-sys", "--system-prompt", metavar="TEXT", help="the system message")
    g.add_argument("-sysf", "--system-prompt-file", metavar="FILE", help="the same from a file")
    g = p.add_mutually_exclusive_group()
    g.add_argument("-p", "--prompt", metavar="TEXT", help="the first message")
    g.add_argument("-f", "--file", metavar="FILE", help="the same from a file")
    p.add_argument("-st", "--single-turn", action="store_true", help="end after the first answer")
    p.add_argument(
        "-n",
        "--n-predict",
        "--predict",
        type=whole(-2),
        default=-1,
        metavar="N",
        help="most tokens of an answer; -1, or -2, for no limit but the context (default)",
    )
    p.add_argument(
        "--chat-template",
        metavar="NAME|TEXT|FILE",
        help="a well-known format, a jinja2 template or a file with one; default: the model's own",
    )
    p.add_argument("--chat-template-file", metavar="FILE", help="the same, always a file")
    add_surroundings(p)
    add_template_variables(p)
    p.add_argument(
        "--reasoning-budget",
        type=whole(-1),
        default=-1,
        metavar="N",
        help="most tokens of thoughts; 0: asks for none, -1: no limit (default)",
    )
    p.add_argument(
        "--reasoning-budget-message",
        default="",
        metavar="TEXT",
        help="what thoughts end with when their budget is spent",
    )
    p.add_argument(
        "-rea",
        "--reasoning",
        choices=("on", "off", "auto"),
        default="auto",
        help="whether the template asks for thoughts; auto: as it does by itself (default)",
    )
    p.add_argument(
        "--keep",
        type=whole(-1),
        default=0,
        metavar="N",
        help="messages within the first N tokens stay when the conversation outgrows the context; "
        "-1: all (default 0)",
    )
    p.add_argument(
        "--no-context-shift",
        dest="context_shift",
        action="store_false",
        help="end where the context does, in place of leaving out the oldest messages",
    )
    p.add_argument(
        "--context-shift", action="store_true", default=True, help="the opposite (default)"
    )
    add_raw(p)
    p.add_argument("--plain", action="store_true", help="show answers as they are, no markdown")
    p.add_argument(
        "--no-escape",
        action="store_true",
        help=r"take \n, \t, \\ and the like in -p and -sys as they are",
    )
    p.add_argument(
        "--no-perf", "--no-show-timings", action="store_true", help="no timings at the end"
    )
    add_engine(p)
    add_keys(p)
    add_sampling(p)
    add_constraints(p)
    add_speculation(p)
    add_profile(p)
    add_verbosity(p)
    add_log(p)
    p.add_argument(
        "-cnv", "--conversation", action="store_true", help="what this command does anyway"
    )
    p.add_argument(
        "-r",
        "--reverse-prompt",
        action="append",
        default=[],
        type=some_text,
        metavar="TEXT",
        help="end an answer before this text; may be given more than once",
    )
    add_others(p, TEXT, TAKEN_FOR_CHAT)


def run(args: Namespace) -> int:
    import_engine()
    begin(args)
    settings = sampler_settings(args)
    asked = constraint(args)
    speculation = speculation_settings(args)
    profile_path = check_profile(args)
    around = surroundings(args)
    choice = around or _template_text(args)
    system = _argument(args.system_prompt or "", args)
    if args.system_prompt_file is not None:
        system = read_file(args.system_prompt_file, "-sysf").removesuffix("\n")
    first = None if args.prompt is None else _argument(args.prompt, args)
    if args.file is not None:
        first = read_file(args.file, "-f/--file").removesuffix("\n")
    began = time.perf_counter()
    model = prepare(open_source(args), engine_options(args))
    template = _template(model, choice, args.chat_template_kwargs)
    within = answers_within(asked, model, template)
    load_weights(model, quiet=not args.verbose)
    set_speculation(model, args, speculation)
    profile = new_profile(model) if profile_path else None

    from gguflow.engine import env

    from .talk.commands import COMMANDS, Talk
    from .talk.conversation import Conversation, TalkOptions
    from .talk.reader import reader

    options = TalkOptions(
        settings, max(-1, args.n_predict), args.ignore_eos, keep=args.keep,
        shifts=args.context_shift, budget=args.reasoning_budget,
        budget_message=_argument(args.reasoning_budget_message, args),
        thinks={"on": True, "off": False}.get(args.reasoning), variables=args.chat_template_kwargs,
        stops=[_argument(t, args) for t in args.reverse_prompt], logit_bias=dict(args.logit_bias),
        within=within, keeps_stops=around is not None,
    )  # fmt: skip
    session = model.new_session(profile)
    conversation = Conversation(model, template, options, session, system)
    load_s = time.perf_counter() - began
    source = reader(env.cache_dir() / "chat_history", [f"/{name}" for name in COMMANDS])
    try:
        return _converse(Talk(conversation), source, args, first)
    finally:
        conversation.session.save_lookup()
        if not args.no_perf:
            print_timings(conversation.total, load_s)
        if profile is not None and profile_path is not None:
            save_profile(profile, profile_path)


def _template_text(args: Namespace) -> str | None:
    """--chat-template with a file's name replaced by its text."""
    if args.chat_template_file is not None:
        return read_file(args.chat_template_file, "--chat-template-file")
    choice: str | None = args.chat_template
    if choice is not None and "{" not in choice and Path(choice).is_file():
        return read_file(choice, "--chat-template")
    return choice


def _template(model: Model, choice: str | None, variables: Mapping[str, object]) -> ChatTemplate:
    """The format of the conversation. Says so where the model has none of its own."""
    from gguflow.models.chat import ChatTemplate, ChatTemplateError, check_variables

    try:
        check_variables(variables)
    except ChatTemplateError as e:
        raise UsageError(f"--chat-template-kwargs: {e}") from None
    metadata, tokenizer = model.source.metadata, model.tokenizer
    try:
        template = ChatTemplate.for_model(metadata, tokenizer, choice)
    except ChatTemplateError as e:
        if choice is None:
            raise
        raise UsageError(f"--chat-template: {e}") from None
    if choice is None and template.name == "chat template 'plain'":
        note(
            "note: this model has no chat format, so it may not know conversations; it sees "
            "'User: ... Assistant:'"
        )
    return template


def _argument(text: str, args: Namespace) -> str:
    return text if args.no_escape else unescape(text)


def _converse(talk: Talk, source: Reader, args: Namespace, first: str | None) -> int:
    from .talk.commands import take

    if source.is_terminal and first is None:
        note("/help lists the commands, /bye ends the conversation, Ctrl-C stops an answer")
    while True:
        text = first if first is not None else source.read()
        first = None
        if text is None:
            return OK
        if not text.strip():
            continue
        if take(talk, text.strip()):
            if talk.is_over:
                return OK
            if not talk.again:
                continue
            talk.again = False
        else:
            message = text.removeprefix("/") if text.startswith("//") else text
            talk.conversation.say(talk.attached + message)
            talk.attached = ""
        has_template = bool(args.chat_template or args.chat_template_file)
        finished = answer(talk, args.plain, source.is_terminal, has_template, args.raw)
        if not finished and not source.is_terminal:
            return INTERRUPTED
        if args.single_turn:
            return OK if finished else INTERRUPTED


def answer(
    talk: Talk, is_plain: bool, is_terminal: bool, has_template: bool = False, raw: bool = False
) -> bool:
    """Answer what was said on standard output. False if Ctrl-C cut it short. has_template: the
    user's own. raw: control characters as they are, which markdown has no place for.

    On a terminal, a conversation that does not fit is reported and stays as it was; elsewhere
    ContextError ends the program.
    """
    from gguflow.engine import interrupt
    from gguflow.engine.prompt import ContextError
    from gguflow.models.chat import ChatTemplateError

    from .talk.display import display

    notes: list[str] = []
    finished = True
    try:
        with interrupt.heeded(), display(is_plain or raw, talk.shows_thoughts, raw) as shown:
            for kind, text in talk.conversation.reply():
                if kind == "note":
                    notes.append(text)
                elif kind == "thought":
                    shown.thought(text)
                else:
                    shown.text(text)
    except KeyboardInterrupt:
        finished = False
    except ChatTemplateError as e:
        raise UsageError(f"--chat-template: {e}") if has_template else e from None
    except ContextError as e:
        if not is_terminal:
            raise
        talk.conversation.undo()
        note(f"{e}; or /clear")
        return True
    talk.conversation.commit()
    for text in notes:
        note(f"note: {text}")
    return finished
