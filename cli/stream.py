"""Generated text to standard output as it comes, and the timings afterwards."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .load import note

if TYPE_CHECKING:
    from gguflow.engine.sampling import SamplerSettings
    from gguflow.engine.session import Session, Timings


def write(text: str) -> None:
    """To standard output, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def stream(
    session: Session,
    tokenizer: Any,
    ids: Sequence[int],
    max_tokens: int,
    settings: SamplerSettings,
    ignore_eos: bool = False,
) -> tuple[str, bool]:
    """Generate after `ids`, writing the text as it comes.

    Returns the text and whether Ctrl-C ended it; what was produced by then counts.
    """
    decoder = tokenizer.stream()
    pieces: list[str] = []

    def emit(piece: str) -> None:
        if piece:
            pieces.append(piece)
            write(piece)

    stop = () if ignore_eos else tokenizer.eog_ids
    interrupted = False
    try:
        for token in session.generate(ids, max_tokens, settings, stop):
            emit(decoder.push(token))
    except KeyboardInterrupt:
        interrupted = True
    emit(decoder.flush())
    return "".join(pieces), interrupted


def print_timings(t: Timings, load_s: float) -> None:
    """llama.cpp's block, on stderr."""
    note("")
    note(f"       load time = {1e3 * load_s:10.2f} ms")
    note(f"prompt eval time = {_rate(t.prompt_s, t.n_prompt, 'tokens')}")
    note(f"       eval time = {_rate(t.generate_s, t.n_runs, 'runs  ')}")
    total = 1e3 * (t.prompt_s + t.generate_s)
    note(f"      total time = {total:10.2f} ms / {t.n_prompt + t.n_runs:5d} tokens")


def _rate(seconds: float, n: int, unit: str) -> str:
    each = 1e3 * seconds / n if n else 0.0
    rate = n / seconds if seconds else 0.0
    return (
        f"{1e3 * seconds:10.2f} ms / {n:5d} {unit} "
        f"({each:8.2f} ms per token, {rate:8.2f} tokens per second)"
    )
