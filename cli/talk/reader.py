"""The user's messages: from a terminal with editing and history, or lines from a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..load import note

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings

QUOTES = '"""'  # around a message of several lines


class Reader(Protocol):
    """Where messages come from."""

    is_terminal: bool

    def read(self) -> str | None:
        """The next message, None at the end of input. Ctrl-C passes through."""


def is_open(text: str) -> bool:
    """Whether a message has begun with three quotes and not ended with three."""
    text = text.lstrip()
    return text.startswith(QUOTES) and text.count(QUOTES) < 2


def unquote(text: str) -> str:
    """A message without the quotes around it."""
    bare = text.strip()
    if len(bare) >= 2 * len(QUOTES) and bare.startswith(QUOTES) and bare.endswith(QUOTES):
        return bare[len(QUOTES) : -len(QUOTES)].strip("\r\n")
    return text


class Lines:
    """Lines of a pipe or a file; three quotes hold several together."""

    is_terminal = False

    def read(self) -> str | None:
        lines: list[str] = []
        while line := sys.stdin.readline():
            lines.append(line.rstrip("\r\n"))
            if not is_open("\n".join(lines)):
                return unquote("\n".join(lines))
        return unquote("\n".join(lines)) if lines else None


class Terminal:
    """prompt_toolkit's editor. A pasted text is one message whatever lines it has; Alt-Enter begins
    another line. Ctrl-C clears what is typed, and on an empty line ends the program."""

    is_terminal = True

    def __init__(self, history: Path | None, words: Iterable[str]) -> None:
        """history: the file that keeps what was typed; words: commands, to be completed."""
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.output import create_output

        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            key_bindings=_keys(),
            completer=WordCompleter(list(words), sentence=True),
            complete_while_typing=False,
            enable_history_search=True,
            # Standard output holds answers only.
            output=create_output(stdout=sys.stdout if sys.stdout.isatty() else sys.stderr),
        )

    def read(self) -> str | None:
        try:
            return unquote(self._session.prompt("> ", prompt_continuation="  "))
        except EOFError:
            note("")
            return None


def _history(path: Path | None) -> Any:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
            return FileHistory(str(path))
        except OSError:  # a home that cannot be written to: this talk's own will do
            pass
    return InMemoryHistory()


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        if is_open(event.current_buffer.text):
            event.current_buffer.insert_text("\n")
        else:
            event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class Bare:
    """A terminal without prompt_toolkit."""

    is_terminal = True

    def read(self) -> str | None:
        try:
            lines = [input("> ")]
            while is_open("\n".join(lines)):
                lines.append(input("  "))
        except EOFError:
            note("")
            return None
        return unquote("\n".join(lines))


def reader(history: Path | None, words: Iterable[str]) -> Reader:
    """What suits standard input."""
    if not sys.stdin.isatty():
        return Lines()
    try:
        return Terminal(history, words)
    except ImportError:
        note("note: without the package prompt_toolkit, lines cannot be edited")
        return Bare()
