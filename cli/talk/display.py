"""Answers on a terminal or into a pipe, as they come."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from gguflow.engine.harmless import many_lines

from ..load import note
from ..stream import write, write_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

REFRESH_S = 0.06
FENCES = ("```", "~~~")


class Display(Protocol):
    """Shows one answer; used in a `with`, so that the terminal is left as it was."""

    def thought(self, text: str) -> None: ...

    def text(self, text: str) -> None: ...

    def __enter__(self) -> Display: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Plain:
    """Text as it is. Thoughts are dim on a terminal, and left out of a pipe."""

    def __init__(self, shows_thoughts: bool, raw: bool = False) -> None:
        self._raw = raw
        self._is_terminal = sys.stdout.isatty()
        self._shows = shows_thoughts and self._is_terminal
        self._is_dim = False

    def thought(self, text: str) -> None:
        if self._shows:
            if not self._is_dim:
                write("\x1b[2m")
                self._is_dim = True
            write_text(text, self._raw)

    def text(self, text: str) -> None:
        self._end_thoughts("\n")
        write_text(text, self._raw)

    def _end_thoughts(self, gap: str) -> None:
        if self._is_dim:
            write("\x1b[0m" + gap)
            self._is_dim = False

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end_thoughts("")
        if kind is None or kind is KeyboardInterrupt:
            write("\n")


class Rendered:
    """Markdown, a block at a time: what is done is printed for good, the block that is still coming
    is drawn anew as it grows."""

    def __init__(self, shows_thoughts: bool) -> None:
        from rich.console import Console

        self._console: Console = Console(highlight=False)
        self._shows = shows_thoughts
        self._live: Live | None = None
        self._block = ""
        self._fence = ""  # what a block of code began with, and ends with
        self._thoughts = ""
        self._drawn = 0.0

    def thought(self, text: str) -> None:
        if self._shows:
            self._thoughts += many_lines(text)
            *lines, self._thoughts = self._thoughts.split("\n")
            for line in lines:
                self._console.print(line, style="dim", markup=False)

    def text(self, text: str) -> None:
        self._end_thoughts()
        self._block += many_lines(text)
        while (end := self._end_of_block()) is not None:
            block, self._block = self._block[:end], self._block[end:].lstrip("\n")
            self._stop()
            self._print(block)
        self._draw()

    def _end_of_block(self) -> int | None:
        """Where the first block that is whole ends: at a blank line, or after a block of code."""
        at, fence = 0, ""
        for line in self._block.splitlines(keepends=True):
            if not line.endswith("\n"):
                return None
            bare = line.strip()
            if fence:
                if bare == fence:
                    return at + len(line)
            elif bare[:3] in FENCES:
                if at:
                    return at  # the text before it
                fence = bare[:3]
            elif not bare and self._block[:at].strip():
                return at
            at += len(line)
        return None

    def _print(self, block: str) -> None:
        from rich.markdown import Markdown

        if block.strip():
            self._console.print(Markdown(block.strip("\n")))
            self._console.print()

    def _draw(self) -> None:
        from rich.live import Live
        from rich.markdown import Markdown

        now = time.monotonic()
        if now - self._drawn < REFRESH_S:
            return
        self._drawn = now
        if self._live is None:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True,
                vertical_overflow="ellipsis",
            )  # fmt: skip
            self._live.start()
        self._live.update(Markdown(self._block), refresh=True)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.update("")
            self._live.stop()
            self._live = None

    def _end_thoughts(self) -> None:
        if self._thoughts:
            self._console.print(self._thoughts, style="dim", markup=False)
            self._thoughts = ""

    def __enter__(self) -> Rendered:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_thoughts()
        self._stop()
        self._print(self._block)
        self._block = ""


def display(is_plain: bool, shows_thoughts: bool, raw: bool = False) -> Display:
    """What suits standard output. raw: control characters as they are, which is for plain text."""
    if is_plain or not sys.stdout.isatty():
        return Plain(shows_thoughts, raw)
    try:
        return Rendered(shows_thoughts)
    except ImportError:
        note("note: without the package rich, answers are shown as they are")
        return Plain(shows_thoughts)
