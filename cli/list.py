"""`gguflow list`: models on this machine."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .columns import size_text
from .errors import OK
from .load import note
from .stream import write

SUMMARY = "models on this machine: the hub's cache, ollama's and llama.cpp's"


def add_arguments(p: ArgumentParser) -> None:
    p.add_argument("--paths", action="store_true", help="their files too")


def run(args: Namespace) -> int:
    from gguflow.engine.hub import kept

    found = kept()
    if not found:
        note("there are none; `gguflow pull USER/REPO` fetches one")
    width = max((len(k.name) for k in found), default=0)
    for k in found:
        line = f"{k.name:<{width}}  {size_text(k.n_bytes):>10}  {k.where:<9}"
        write(f"{line}  {k.path}".rstrip() + "\n" if args.paths else f"{line.rstrip()}\n")
    return OK
