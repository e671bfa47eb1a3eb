"""Generated text to standard output as it comes, and the timings afterwards."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gguflow.engine.harmless import many_lines

from .load import note
from .progress import Bar
from .speculation_options import print_drafting

if TYPE_CHECKING:
    from gguflow.engine.piece import Timings
    from gguflow.engine.serving.request import Request
    from gguflow.engine.session import Session

    from .shift import Shift


def write(text: str) -> None:
    """To standard output, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def add_raw(p: ArgumentParser) -> None:
    """--raw."""
    p.add_argument(
        "--raw",
        action="store_true",
        help="write control characters of the text as they are, not as \\x1b and the like",
    )


def write_text(text: str, raw: bool = False) -> None:
    """Text that a model or a stranger wrote, harmless to a terminal unless `raw`."""
    write(text if raw else many_lines(text))


def stream(
    session: Session, request: Request, stops: Sequence[str] = (), special: bool = False,
    raw: bool = False, shift: Shift | None = None,
) -> tuple[str, bool]:  # fmt: skip
    """Generate what a request asks for, writing the text as it comes, up to a stop string.

    special: show control tokens too. raw: see `write_text`. shift: goes on where the context is
    full. Returns the text and whether Ctrl-C
    ended it; what was produced by then counts.
    """
    from gguflow.engine import interrupt
    from gguflow.engine.text import StoppingText

    text = StoppingText(session.model.tokenizer.stream(skip_special=not special), stops)
    pieces: list[str] = []

    def emit(piece: str) -> None:
        if piece:
            pieces.append(piece)
            write_text(piece, raw)

    interrupted = False
    try:
        with interrupt.heeded(), Bar("reading the prompt", "tokens") as bar:
            session.on_prompt = bar.update
            choices = session.choices(request) if shift is None else shift.choices(session, request)
            for choice in choices:
                bar.stop()
                emit(text.push(choice.id))
                if text.found is not None:
                    break
    except KeyboardInterrupt:
        interrupted = True
    finally:
        session.on_prompt = None
    emit(text.flush())
    return "".join(pieces), interrupted


def print_timings(t: Timings, load_s: float) -> None:
    """llama.cpp's block, on stderr."""
    note("")
    note(f"       load time = {1e3 * load_s:10.2f} ms")
    note(f"prompt eval time = {_rate(t.prompt_s, t.n_prompt, 'tokens')}")
    note(f"       eval time = {_rate(t.generate_s, t.n_runs, 'runs  ')}")
    print_drafting(t)
    total = 1e3 * (t.prompt_s + t.generate_s)
    note(f"      total time = {total:10.2f} ms / {t.n_prompt + t.n_runs:5d} tokens")


def _rate(seconds: float, n: int, unit: str) -> str:
    each = 1e3 * seconds / n if n else 0.0
    rate = n / seconds if seconds else 0.0
    return (
        f"{1e3 * seconds:10.2f} ms / {n:5d} {unit} "
        f"({each:8.2f} ms per token, {rate:8.2f} tokens per second)"
    )
