"""`gguflow sparse stats`: how often each neuron fires."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gguflow.engine.limits import MAX_THREADS

from ..columns import columns
from ..errors import OK
from ..load import load_weights, note
from ..options import whole
from .common import add_relu_model, check_output, open_relu

if TYPE_CHECKING:
    from gguflow.engine.load import ModelSource
    from gguflow.engine.variants.relu.stats import Activations

SUMMARY = "count how often each neuron fires on a text"
EPILOG = """\
The counts are kept in GGUFLOW_CACHE_DIR under the model's hash, which all quantizations of a model
share; --vram-budget and `sparse solve` find them there. -o writes them to a file instead.

example: gguflow sparse stats -m relu-7b.gguf -f text.txt"""


def add_arguments(p: ArgumentParser) -> None:
    add_relu_model(p)
    p.add_argument("-f", "--file", metavar="FILE", help="the text; default: a bundled one")
    p.add_argument("-c", "--ctx-size", type=whole(4), default=512, metavar="N",
                   help="tokens a window (default 512)")  # fmt: skip
    p.add_argument("--chunks", type=whole(1), metavar="N",
                   help="only the first N windows (default: all; 1 with --random)")  # fmt: skip
    p.add_argument("-t", "--threads", type=whole(1, MAX_THREADS), metavar="N",
                   help="threads; default: all processors")  # fmt: skip
    p.add_argument("-o", "--output", metavar="FILE", help="write the counts here")


def run(args: Namespace) -> int:
    from gguflow.engine.files import private_folder
    from gguflow.engine.model import Model
    from gguflow.engine.options import Options
    from gguflow.engine.variants.relu.stats import write_stats
    from gguflow.engine.variants.relu.store import stats_path
    from gguflow.engine.variants.relu.tools.count import count_activations

    check_output("-o", args.output)
    source = open_relu(args)
    chunks = token_windows(args, source)
    options = Options(n_ctx=args.ctx_size, n_ubatch=64, n_threads=args.threads or 0, sparse="off")
    model = Model(source, options)
    load_weights(model, quiet=True)
    n_tokens = sum(map(len, chunks))
    stats = count_activations(model, chunks, progress(n_tokens))
    path = Path(args.output) if args.output else stats_path(stats.model_hash)
    if not args.output:
        private_folder(path.parent)
    print(report(stats))
    write_stats(path, stats)
    note(f"counts: {path}")
    return OK


def token_windows(args: Namespace, source: ModelSource) -> list[list[int]]:
    """The text's windows, or random tokens for random weights."""
    from ..perplexity import read_text, text_windows
    from ..prompt import random_ids

    if args.random is not None:
        return [random_ids(args.ctx_size, source.arch.hp.n_vocab)] * (args.chunks or 1)
    return text_windows(source, read_text(args.file), args.ctx_size, args.chunks)


def progress(n_tokens: int) -> Callable[[int], None] | None:
    """A callback that shows on a terminal how far the counting is."""
    if not sys.stderr.isatty():
        return None

    def show(done: int) -> None:
        end = "\r\x1b[K" if done >= n_tokens else ""
        print(f"\r\x1b[K{done}/{n_tokens} tokens{end}", end="", file=sys.stderr, flush=True)

    return show


def report(stats: Activations) -> str:
    """A table by layer, and a line for all of it."""
    from gguflow.engine.variants.relu.stats import hottest

    head = ["layer", "active %", "never %", "hottest % with 80 % of activations"]
    rows = [head]
    for i, p in enumerate(stats.probabilities):
        cells = (100 * p.mean(), 100 * (p == 0).mean(), 100 * hottest(p))
        rows.append([str(i), *(f"{x:.1f}" for x in cells)])
    mean = 100 * stats.active_fraction.mean()
    last = f"{stats.n_tokens} tokens, {mean:.1f} % of the neurons active for a token"
    return f"{columns(rows, right=range(4))}\n{last}"
