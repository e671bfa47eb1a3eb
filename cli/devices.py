"""`gguflow devices`: what this machine can run models on."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from .columns import columns, peaks_line
from .errors import OK, message

SUMMARY = "list the devices and instruction sets that can be used"


def add_arguments(p: ArgumentParser) -> None:
    """None beside the common ones."""


def run(args: Namespace) -> int:
    from gguflow.engine.backends.base import backend_names
    from gguflow.engine.profile.machine import machine_name

    print(machine_name())
    rows = [row for kind in backend_names() for row in descriptions(kind)]
    names = [name for name, _ in rows]
    print(columns((n if i == names.index(n) else "", line) for i, (n, line) in enumerate(rows)))
    return OK


def descriptions(kind: str) -> Iterator[tuple[str, str]]:
    """(device, line): what every device of a backend says of itself and what it reaches, or why it
    cannot be used."""
    from gguflow.engine.backends.base import find_backend
    from gguflow.engine.profile import Peaks

    n, i = 1, 0
    while i < n:
        name = kind if i == 0 else f"{kind}:{i}"
        try:
            backend = find_backend(name)
            roofs = backend.peaks()
        except Exception as e:  # whatever a missing driver or library raises
            yield name, f"not available: {message(e)}"
        else:
            n = backend.n_alike
            yield name, backend.describe()
            if roofs:
                yield name, peaks_line(Peaks(*roofs))
        i += 1
