"""--context-shift and --keep: a text that goes on where the context ends."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Generator
from typing import TYPE_CHECKING

from gguflow.engine.dataclass import replace

from .errors import UsageError
from .options_values import whole

if TYPE_CHECKING:
    from gguflow.engine.model import Model
    from gguflow.engine.piece import FinishReason
    from gguflow.engine.serving.host_sampling import Choice
    from gguflow.engine.serving.request import Request
    from gguflow.engine.session import Session


def add_shift(p: ArgumentParser) -> None:
    """--context-shift and --keep."""
    p.add_argument(
        "--context-shift",
        action="store_true",
        help="go on where the context is full, without the older half of what it holds",
    )
    p.add_argument(
        "--keep",
        type=whole(-1),
        default=0,
        metavar="N",
        help="with --context-shift: the prompt's first N tokens stay; -1: all (default 0)",
    )


def shift(args: Namespace, model: Model, n_prompt: int) -> Shift | None:
    """What the arguments ask for. Raises UsageError for what does not go with it."""
    if not args.context_shift or args.n_predict == -2:  # -2: until the context is full
        return None
    given = {"--prompt-cache": args.prompt_cache, "--grammar": args.grammar,
             "--grammar-file": args.grammar_file, "-j": args.json_schema,
             "-jf": args.json_schema_file}  # fmt: skip
    for flag, value in given.items():
        if value is not None:
            raise UsageError(f"{flag}: not with --context-shift, which forgets what came before")
    n_keep = args.keep + int(model.tokenizer.add_bos)  # as llama.cpp: BOS stays
    return Shift(n_prompt if args.keep < 0 else min(n_keep, n_prompt))


class Shift:
    """Where the context is full, the first n_keep tokens and the later half of the others are read
    again, and the text goes on after them. n_left_out: tokens that went so far."""

    def __init__(self, n_keep: int) -> None:
        self.n_keep = n_keep
        self.n_left_out = 0

    def choices(self, session: Session, request: Request) -> Generator[Choice, None, FinishReason]:
        """As `Session.choices`; its timings are those of all parts."""
        from gguflow.engine.piece import Timings

        total = Timings()
        while True:
            timings, made = Timings(), 0
            ids = [*request.ids]
            parts = session.choices(request, timings)
            try:
                while True:
                    try:
                        choice = next(parts)
                    except StopIteration as end:
                        finish: FinishReason = end.value
                        break
                    ids.append(choice.id)
                    made += 1
                    yield choice
            finally:
                parts.close()
                total.add(timings)
                session.timings = total
            n_out = (len(ids) - self.n_keep) // 2
            if finish == "stop" or made == request.max_tokens or n_out < 1:
                return finish
            self.n_left_out += n_out
            seed = request.settings.seed
            request = replace(
                request,
                ids=[*ids[: self.n_keep], *ids[self.n_keep + n_out :]],
                max_tokens=max(-1, request.max_tokens - made),
                # The same seed would draw the same numbers again.
                settings=replace(
                    request.settings, seed=None if seed is None else (seed + made) % (1 << 63)
                ),
            )
