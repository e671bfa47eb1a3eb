"""--max-memory: a limit of what the process may take, for every command."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from .errors import UsageError
from .options_values import real


def add_limit(p: ArgumentParser) -> None:
    """--max-memory."""
    p.add_argument(
        "--max-memory",
        type=_gib,
        metavar="GiB",
        help="take at most so much of the host's memory: what needs more ends with exit code 4. "
        "Pages of the model's file, which the system takes back, and a GPU's memory do not count",
    )


def _gib(text: str) -> int:
    value = real(text)
    if not 0 < value <= 1 << 20:
        raise ArgumentTypeError(f"{text}: expected GiB, more than 0")
    return int(value * 2**30)


def set_limit(args: Namespace) -> None:
    """Raises UsageError where the system cannot hold the process to it."""
    if args.max_memory is None:
        return
    # What the libraries begin with counts too; some of them do not take a refusal well.
    import numpy  # noqa: F401

    from gguflow.engine.room import limit_memory

    try:
        limit_memory(args.max_memory)
    except OSError as e:
        raise UsageError(f"--max-memory: {e}") from None
