"""`gguflow convert`: a checkpoint of Hugging Face transformers as a GGUF file."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .errors import OK
from .load import note
from .progress import Bar

SUMMARY = "write a Hugging Face checkpoint as GGUF"
EPILOG = """\
DIR holds config.json, model*.safetensors (in one file or several) and a tokenizer. A tensor is in
memory at a time. gguflow quantize makes the file smaller.

example: gguflow convert Llama-3.2-1B llama-3.2-1b.gguf"""


def add_arguments(p: ArgumentParser) -> None:
    p.add_argument("directory", metavar="DIR", help="the checkpoint")
    p.add_argument("out", metavar="OUT.gguf", help="the file to write")
    p.add_argument("--outtype", choices=("auto", "f32", "f16", "bf16", "q8_0"), default="auto",
                   help="of matrices; auto: bf16 where the checkpoint is, else f16")  # fmt: skip
    p.add_argument("--pre", metavar="NAME",
                   help="name of the pre-tokenizer, where it is not found out")  # fmt: skip


def run(args: Namespace) -> int:
    from gguflow.engine.convert import convert

    with Bar("converting") as bar:
        n, nbytes = convert(args.directory, args.out, args.outtype, args.pre, bar.update)
    note(f"wrote {args.out}: {n} tensors, {nbytes / 2**20:.2f} MiB")
    return OK
