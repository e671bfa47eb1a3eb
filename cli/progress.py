"""Progress bars: on a terminal's stderr only, and only for work that takes a while."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

PATIENCE = 0.4  # seconds before a bar appears; what is done by then needs none


class Bar:
    """A bar over bytes, as a context manager; `update` is the engine's progress callback.

    with Bar("loading") as bar:
        model.load_weights(bar.update)
    """

    def __init__(self, title: str, unit: str = "bytes") -> None:
        self.title, self.unit = title, unit
        self._show = sys.stderr.isatty()
        self._began = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take it away."""
        if self._bar is not None:
            self._bar.stop()
        self._show = False

    def update(self, done: int, total: int, what: str = "") -> None:
        """`done` of `total`. `what`, the tensor at hand, is not shown: it flickers by."""
        if not self._show or time.monotonic() - self._began < PATIENCE:
            return
        if self._bar is None:
            self._start(total)
        self._bar.update(self._task, completed=done, total=total)

    def _start(self, total: int) -> None:
        # Imported here: rich takes a tenth of a second, and most models load in less.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
        )
        from rich.progress import TimeRemainingColumn as Remaining

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True) if self.unit == "bytes" else MofNCompleteColumn(),
            Remaining(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self.title, total=total)
        self._bar.start()
