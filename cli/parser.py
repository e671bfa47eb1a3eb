"""The argument parser of every command."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .errors import UsageError


class Parser(ArgumentParser):
    """A parser that raises UsageError and takes the word after an option as its value.

    argparse refuses values that begin with a dash (`-p "-- Hello"`) and reads `-nx` as `-n x`;
    llama.cpp's users expect neither.
    """

    _adding = False

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._late: list[Callable[[], object]] = []

    def add_late(self, add: Callable[[], object]) -> None:
        """What adds options that --help does not list, once one is given that is not there."""
        self._late.append(add)

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """As the base class, which makes a formatter of help to check each option with: one as wide
        as the terminal, for which it imports `shutil`."""
        self._adding = True
        try:
            return super().add_argument(*names, **settings)
        finally:
            self._adding = False

    def _get_formatter(self) -> argparse.HelpFormatter:
        return argparse.HelpFormatter("", width=80) if self._adding else super()._get_formatter()

    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """As the base class; `args` must be given."""
        joined, rest = [], list(args)
        while rest:
            word = rest.pop(0)
            if word == "--":
                joined += [word, *rest]
                break
            if word.startswith("-") and word.partition("=")[0] not in self._option_string_actions:
                while self._late:
                    self._late.pop()()
            word = self._hyphens(word)
            action = self._option_string_actions.get(word.partition("=")[0])
            if action is None and len(word) > 1 and word[0] == "-" and not _is_number(word):
                raise UsageError(f"unknown option {word}{self._nearest(word)}; see --help")
            if action is not None and "=" not in word and rest and action.nargs is None:
                word = f"{word}={rest.pop(0)}"
            joined.append(word)
        return super().parse_known_args(joined, namespace)

    def _hyphens(self, word: str) -> str:
        """--n_predict is --n-predict, as llama.cpp has it."""
        name, equals, value = word.partition("=")
        known = self._option_string_actions
        if name in known or (hyphens := name.replace("_", "-")) not in known:
            return word
        return f"{hyphens}{equals}{value}"

    def _nearest(self, word: str) -> str:
        return nearest(word.partition("=")[0], list(self._option_string_actions))


def nearest(word: str, choices: Sequence[str]) -> str:
    """`, did you mean X?` when one of the choices looks like `word`, else nothing."""
    from difflib import get_close_matches

    found = get_close_matches(word, choices, n=1, cutoff=0.7)
    return f", did you mean {found[0]}?" if found else ""


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
