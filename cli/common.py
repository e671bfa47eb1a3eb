"""Options of every command, which may stand before its name too."""

from __future__ import annotations

from argparse import ArgumentParser

from .limit import add_limit


def add_common(p: ArgumentParser) -> None:
    """--debug, --max-memory, and -q where the command has none of its own."""
    p.add_argument("--debug", action="store_true", help="show where an error comes from")
    if "-q" not in p._option_string_actions:
        p.add_argument(
            "-q", "--quiet", action="store_true", help="say nothing but results and errors"
        )
    add_limit(p)
