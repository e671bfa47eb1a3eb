"""`gguflow devices`: what this machine can run models on."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .columns import columns
from .errors import OK, message

SUMMARY = "list the devices and instruction sets that can be used"


def add_arguments(p: ArgumentParser) -> None:
    """None beside the common ones."""


def run(args: Namespace) -> int:
    from gguflow.engine.backends.base import backend_names
    from gguflow.engine.profile.machine import machine_name

    print(machine_name())
    print(columns((name, description(name)) for name in backend_names()))
    return OK


def description(name: str) -> str:
    """What a backend says of itself, or why it cannot be used."""
    from gguflow.engine.backends.base import find_backend

    try:
        return find_backend(name).describe()
    except Exception as e:  # whatever a missing driver or library raises
        return f"not available: {message(e)}"
