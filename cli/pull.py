"""`gguflow pull`: fetch a model of the Hugging Face hub."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .errors import OK
from .load import hub_model
from .options import add_hub
from .stream import write

SUMMARY = "fetch a model of the Hugging Face hub"
EPILOG = "example: gguflow pull ggml-org/gemma-3-1b-it-GGUF:Q4_K_M"


def add_arguments(p: ArgumentParser) -> None:
    p.add_argument("name", metavar="USER/REPO[:QUANT]")
    add_hub(p)


def run(args: Namespace) -> int:
    write(f"{hub_model(args.name, args)}\n")
    return OK
