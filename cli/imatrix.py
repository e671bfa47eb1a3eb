"""`gguflow imatrix`: how much each column of a model's weights matters on a text."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from gguflow.engine.limits import MAX_THREADS

from .auto_devices import with_devices
from .errors import OK
from .load import check_context, model_path, note
from .options import add_device, add_gpu_layers, add_model, placement, whole
from .perplexity import read_text, text_windows
from .progress import Bar

SUMMARY = "measure which columns of the weights matter, for quantize --imatrix"
EPILOG = """\
The file is in llama.cpp's format: llama-quantize reads it, and gguflow quantize reads those of
llama-imatrix.

example: gguflow imatrix -m model-f16.gguf -f text.txt -o imatrix.gguf"""


def add_arguments(p: ArgumentParser) -> None:
    add_model(p)
    p.add_argument("-f", "--file", metavar="FILE",
                   help="text to run; default: a bundled one")  # fmt: skip
    p.add_argument("-o", "--output", metavar="FILE", default="imatrix.gguf",
                   help="the file to write (default imatrix.gguf)")  # fmt: skip
    p.add_argument("-c", "--ctx-size", type=whole(4), default=512, metavar="N",
                   help="tokens a window (default 512)")  # fmt: skip
    p.add_argument("--chunks", type=whole(1), metavar="N", help="only the first N windows")
    p.add_argument("-t", "--threads", type=whole(1, MAX_THREADS), metavar="N",
                   help="threads; default: all processors")  # fmt: skip
    add_gpu_layers(p)
    add_device(p)


def _show(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{done} of {total} windows", end=end, file=sys.stderr, flush=True)


def run(args: Namespace) -> int:
    from gguflow.engine.imatrix import measure, write_imatrix
    from gguflow.engine.load import open_model
    from gguflow.engine.model import Model
    from gguflow.engine.options import Options

    text = read_text(args.file)
    source = open_model(model_path(args))
    options = Options(
        n_ctx=args.ctx_size,
        n_threads=args.threads or 0,
        n_gpu_layers=args.gpu_layers,
        sparse="off",
        **placement(args),
    )
    check_context(source, options)
    chunks = text_windows(source, text, args.ctx_size, args.chunks)
    model, name = Model(source, with_devices(source, options, note)), args.file or "bundled"
    with Bar("loading") as bar:
        model.load_weights(bar.update)
    found = measure(model, chunks, name, _show if sys.stderr.isatty() else None)
    write_imatrix(args.output, found)
    note(f"wrote {args.output}: {len(found.entries)} weights on {len(chunks)} windows")
    return OK
