"""`gguflow chat`: a conversation in the model's own format."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import INTERRUPTED, OK, UsageError
from .load import load_weights, note, open_source, prepare
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
from .profiling import new_profile, save_profile
from .prompt import read_file, unescape
from .stream import print_timings, stream, write

SUMMARY = "talk with a model, turn by turn"
EPILOG = (
    "commands: /reset forgets the conversation, /exit ends it, as end of input (Ctrl-D) does.\n"
    "Ctrl-C stops an answer; at the prompt it ends the program."
)


def add_arguments(p: ArgumentParser) -> None:
    add_model(p)
    p.add_argument("-sys", "--system-prompt", metavar="TEXT", help="the system message")
    p.add_argument("-p", "--prompt", metavar="TEXT", help="the first message")
    p.add_argument("--single-turn", action="store_true", help="end after the first answer")
    p.add_argument(
        "-n",
        "--n-predict",
        type=whole(-1),
        default=-1,
        metavar="N",
        help="most tokens of an answer; -1 for no limit but the context (default)",
    )
    p.add_argument(
        "--chat-template",
        metavar="NAME|TEXT|FILE",
        help="a well-known format, a jinja2 template or a file with one; default: the model's own",
    )
    p.add_argument(
        "--no-escape",
        action="store_true",
        help=r"take \n, \t, \\ and the like in -p and -sys as they are",
    )
    p.add_argument("--no-perf", action="store_true", help="no timings at the end")
    add_engine(p)
    add_sampling(p)
    add_profile(p)


def run(args: Namespace) -> int:
    settings = sampler_settings(args)
    profile_path = check_profile(args)
    template_text = _template_text(args.chat_template)
    began = time.perf_counter()
    model = prepare(open_source(args), engine_options(args))

    from gguflow.models.chat import ChatTemplate, ChatTemplateError

    try:
        template = ChatTemplate.for_model(model.source.metadata, model.tokenizer, template_text)
    except ChatTemplateError as e:
        if template_text is None:
            raise
        raise UsageError(f"--chat-template: {e}") from None
    load_weights(model)
    profile = new_profile(model) if profile_path else None
    conversation = Conversation(model, template, profile, args, settings)
    load_s = time.perf_counter() - began
    try:
        code = _converse(conversation, args)
    finally:
        if not args.no_perf:
            print_timings(conversation.total, load_s)
        if profile is not None and profile_path is not None:
            save_profile(profile, profile_path)
    return code


def _template_text(choice: str | None) -> str | None:
    """--chat-template with a file's name replaced by its text."""
    if choice is not None and "{" not in choice and Path(choice).is_file():
        return read_file(choice, "--chat-template")
    return choice


def _converse(conversation: Conversation, args: Namespace) -> int:
    first = None if args.prompt is None else _argument(args.prompt, args)
    if sys.stdin.isatty():
        note("/reset forgets the conversation, /exit ends it, Ctrl-C stops an answer")
    while True:
        text = first if first is not None else _read_line()
        first = None
        if text is None or text.strip() == "/exit":
            return OK
        if text.strip() == "/reset":
            conversation.reset()
            note("the conversation is forgotten")
            continue
        if not text.strip():
            continue
        finished = conversation.answer(text)
        if not finished and not sys.stdin.isatty():
            return INTERRUPTED
        if args.single_turn:
            return OK if finished else INTERRUPTED


def _argument(text: str, args: Namespace) -> str:
    return text if args.no_escape else unescape(text)


def _read_line() -> str | None:
    """The next message, None at the end of input. Ctrl-C passes through."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None
    with suppress(ImportError):  # not on every platform
        import readline  # noqa: F401  (gives input() editing and history)
    if not sys.stdout.isatty():
        # input() would write its prompt to standard output, which holds answers only.
        print("> ", end="", file=sys.stderr, flush=True)
    try:
        return input("> " if sys.stdout.isatty() else "")
    except EOFError:
        note("")
        return None


class Conversation:
    """Messages so far, and the session whose KV cache holds them.

    Every turn renders the whole conversation and the session reuses what its cache already holds
    of it, so a template may rewrite what came before; the prefix is compared token by token.
    """

    def __init__(
        self, model: Any, template: Any, profile: Any, args: Namespace, settings: Any
    ) -> None:
        from gguflow.engine.session import Timings

        self.model, self.template = model, template
        self.session = model.new_session(profile)
        self.settings, self.args = settings, args
        self.total = Timings()
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Back to the system message."""
        self.messages = []
        if self.args.system_prompt:
            text = _argument(self.args.system_prompt, self.args)
            self.messages.append({"role": "system", "content": text})

    def answer(self, text: str) -> bool:
        """Answer a message on standard output. False if Ctrl-C cut it short.

        On a terminal, a conversation that no longer fits is reported and stays as it was;
        elsewhere ContextError ends the program.
        """
        from gguflow.engine.prompt import ContextError

        messages = [*self.messages, {"role": "user", "content": text}]
        ids = self.template.encode(self.model.tokenizer, messages)
        try:
            self.model.check_prompt(ids)
        except ContextError as e:
            if not sys.stdin.isatty():
                raise
            note(f"{e}; or /reset")
            return True
        reply, interrupted = stream(
            self.session,
            self.model.tokenizer,
            ids,
            self.args.n_predict,
            self.settings,
            self.args.ignore_eos,
        )
        write("\n")
        self.total.add(self.session.timings)
        if self.session.is_full:
            note(f"note: the context of {self.model.options.n_ctx} tokens is full")
        self.messages = [*messages, {"role": "assistant", "content": reply}]
        return not interrupted
