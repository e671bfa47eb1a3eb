"""Options of llama.cpp without a meaning of their own here: what they ask for is so anyway, or has
no counterpart. They are taken and named; what would change the text is refused by name."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from .errors import UsageError
from .llama_other import Other
from .parser import Parser


class _Named(argparse.Action):
    """Remembers what is to be said of an option, or refuses it."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, other: Other, refused: bool, default: Any
    ) -> None:
        nargs = None if other.values == 1 else other.values
        super().__init__(option_strings, dest, nargs=nargs, default=default, help=argparse.SUPPRESS)
        self.other, self.refused = other, refused

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        if self.refused:
            raise UsageError(f"{option}: {self.other.why}")
        if self.other.why is not None:
            said = f"note: {option} changes nothing: {self.other.why}"
            setattr(namespace, self.dest, [*getattr(namespace, self.dest), said])


def add_others(
    p: ArgumentParser, refused_too: Sequence[Other] = (), taken_too: Sequence[Other] = ()
) -> None:
    """Take the options that `p` has not got itself; `notes` of the arguments is what to say."""
    p.set_defaults(notes=[])

    def add() -> None:
        from .llama_taken import REFUSED, TAKEN

        own = p._option_string_actions
        for others, refused in (((*TAKEN, *taken_too), False), ((*REFUSED, *refused_too), True)):
            for other in others:
                flags = [flag for flag in other.flags.split() if flag not in own]
                if flags:
                    p.add_argument(
                        *flags, dest="notes", action=_Named, other=other, refused=refused
                    )

    if isinstance(p, Parser):
        p.add_late(add)
    else:
        add()
