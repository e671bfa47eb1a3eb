"""`gguflow devices`: what this machine can run models on."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .columns import columns, peaks_line
from .errors import OK, message

SUMMARY = "list the devices and instruction sets that can be used"


def add_arguments(p: ArgumentParser) -> None:
    """None beside the common ones."""


def run(args: Namespace) -> int:
    from gguflow.engine.backends.base import backend_names
    from gguflow.engine.profile.machine import machine_name

    print(machine_name())
    rows = [(name, line) for name in backend_names() for line in description(name)]
    names = [name for name, _ in rows]
    print(columns((n if i == names.index(n) else "", line) for i, (n, line) in enumerate(rows)))
    return OK


def description(name: str) -> list[str]:
    """What a backend says of itself and what it reaches, or why it cannot be used."""
    from gguflow.engine.backends.base import find_backend
    from gguflow.engine.profile import Peaks

    try:
        backend = find_backend(name)
        roofs = backend.peaks()
        return [backend.describe(), *([peaks_line(Peaks(*roofs))] if roofs else [])]
    except Exception as e:  # whatever a missing driver or library raises
        return [f"not available: {message(e)}"]
