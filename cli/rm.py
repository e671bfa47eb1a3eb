"""`gguflow rm`: take a model out of the hub's cache."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .columns import size_text
from .errors import OK
from .load import note

SUMMARY = "take a model out of the hub's cache"


def add_arguments(p: ArgumentParser) -> None:
    p.add_argument("name", metavar="USER/REPO[:QUANT]")


def run(args: Namespace) -> int:
    from gguflow.engine.hub import remove

    note(f"{args.name}: {size_text(remove(args.name))} are free again")
    return OK
