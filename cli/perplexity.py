"""`gguflow perplexity`: how well a model predicts a text, and what quantizing it costs."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguflow.engine.limits import MAX_THREADS

from .errors import OK, UsageError
from .load import check_context, model_path, note, warn_of_context
from .options import (
    add_device,
    add_gpu_layers,
    add_model,
    add_sparse_mode,
    placement,
    sparse_mode,
    whole,
)
from .prompt import read_file

if TYPE_CHECKING:
    from gguflow.engine.evaluate import Row
    from gguflow.engine.load import ModelSource

SUMMARY = "perplexity of a text, and a table of what each type loses"
EPILOG = """\
Windows and scoring are those of llama-perplexity, so the figures compare. With --types the model's
weights are taken as F32 values, quantized in memory, and compared with the unquantized model over
every scored token: difference in perplexity, Kullback-Leibler divergence of the distributions (mean
and 99th percentile, in nats), share of tokens whose most likely successor stays the same.

example: gguflow perplexity --types all"""


def add_arguments(p: ArgumentParser) -> None:
    add_model(p)
    p.add_argument("-f", "--file", metavar="FILE",
                   help="text to predict; default: a bundled one that the bundled model "
                   "was not trained on")  # fmt: skip
    p.add_argument("-c", "--ctx-size", type=whole(4), default=512, metavar="N",
                   help="tokens a window (default 512)")  # fmt: skip
    p.add_argument("--chunks", type=whole(1), metavar="N", help="only the first N windows")
    p.add_argument("--types", metavar="LIST",
                   help="compare these quantizations: Q4_0,Q4_K_M,... or all")  # fmt: skip
    p.add_argument("--reference", metavar="FILE",
                   help="compare with this model; --types otherwise with F32")  # fmt: skip
    p.add_argument("-t", "--threads", type=whole(1, MAX_THREADS), metavar="N",
                   help="threads; default: all processors")  # fmt: skip
    add_gpu_layers(p)
    add_device(p)
    add_sparse_mode(p)
    p.add_argument("-o", "--output", choices=("md", "json"), default="md",
                   help="a table in Markdown (default) or JSON")  # fmt: skip


def run(args: Namespace) -> int:
    from gguflow.engine.evaluate import compare
    from gguflow.engine.load import open_model
    from gguflow.engine.options import Options

    types = type_names(args.types)
    text = read_text(args.file)
    source = open_model(model_path(args))
    options = Options(
        n_ctx=args.ctx_size,
        n_threads=args.threads or 0,
        n_gpu_layers=args.gpu_layers,
        **placement(args),
        **sparse_mode(args),
    )
    check_context(source, options)
    for line in source.notes:
        note(line)
    chunks = text_windows(source, text, args.ctx_size, args.chunks)
    warn_of_context(source, args.ctx_size)
    note(f"{len(chunks)} windows of {args.ctx_size} tokens")
    sources = models(source, args.reference, types, args.threads)
    progress = Progress(len(chunks))
    rows = compare(sources, options, chunks, progress.update)
    progress.clear()
    print(markdown(rows) if args.output == "md" else as_json(rows))
    return OK


def type_names(text: str | None) -> list[str]:
    """Names of mixes from `A,B` or `all`. Raises MixError for one that does not exist."""
    from gguflow.models.mixes import MIXES, find_mix

    if text is None:
        return []
    if text.lower() == "all":
        return [name for name in MIXES if name != "F32"]
    names = [name.strip().upper() for name in text.split(",")]
    for name in names:
        find_mix(name)
    return names


def read_text(path: str | None) -> str:
    """The text of -f or the bundled one. Raises UsageError naming the file."""
    if path is None:
        return (files("gguflow.models") / "bundled" / "heldout.txt").read_text(encoding="utf-8")
    return read_file(path, "-f")


def text_windows(source: ModelSource, text: str, n_ctx: int, most: int | None) -> list[list[int]]:
    """The text's windows. Raises UsageError when it does not fill one."""
    from gguflow.engine.evaluate import TextTooShort, windows
    from gguflow.models.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_metadata(source.metadata, source.path)
    try:
        chunks = windows(
            tokenizer.encode(text), n_ctx, tokenizer.bos if tokenizer.add_bos else None
        )
    except TextTooShort as e:
        raise UsageError(f"{e}; give a longer text with -f or lower -c") from None
    return chunks[:most]


def models(
    source: ModelSource, reference: str | None, types: Sequence[str], threads: int | None
) -> list[tuple[str, ModelSource]]:
    """What to compare, by name, the reference first."""
    from gguflow.engine.load import open_model
    from gguflow.engine.requantize import native_converter, requantize
    from gguflow.models.mixes import find_mix

    found: list[tuple[str, ModelSource]] = []
    if reference is not None:
        other = open_model(reference)
        if other.arch.hp.n_vocab != source.arch.hp.n_vocab:
            raise UsageError(
                f"--reference {reference}: {other.arch.hp.n_vocab} tokens in the vocabulary, "
                f"{source.path} has {source.arch.hp.n_vocab}"
            )
        found.append((Path(reference).name, other))
    if not types:
        return [*found, (Path(source.path).name, source)]
    by = native_converter(threads)
    names = types if found else ["F32", *(t for t in types if t != "F32")]
    return [*found, *((n, requantize(source, find_mix(n), by)) for n in names)]


class Progress:
    """A line on a terminal's stderr that says how far the work is."""

    def __init__(self, n_windows: int) -> None:
        self.n_windows = n_windows
        self._show = sys.stderr.isatty()

    def update(self, names: str, done: int, value: float) -> None:
        """`done` windows are scored; the reference's perplexity so far is `value`."""
        if self._show:
            text = f"{done}/{self.n_windows} windows, perplexity {value:.4f} ({names:.60})"
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._show:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# -- output ----------------------------------------------------------------------------------------


def markdown(rows: Sequence[Row]) -> str:
    """A table; the comparing columns only when there is something to compare."""
    head = ["model", "bits/weight", "MiB", "perplexity"]
    if len(rows) > 1:
        head += ["difference", "mean KL", "99 % KL", "same top token"]
    lines = [head, [":---"] + ["---:"] * (len(head) - 1)]
    base = rows[0].score.perplexity.value
    for row in rows:
        p, d = row.score.perplexity, row.score.divergence
        cells = [
            row.name,
            f"{8 * row.n_bytes / row.n_weights:.2f}",
            f"{row.n_bytes / 2**20:.2f}",
            f"{p.value:.4f} ± {p.error:.4f}",
        ]
        if d is not None:
            cells += [f"{p.value - base:+.4f} ({p.value / base - 1:+.2%})", f"{d.mean_kl:.6f}",
                      f"{d.p99_kl:.6f}", f"{d.same_top:.2%}"]  # fmt: skip
        lines.append(cells + ["" for _ in head[len(cells) :]])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def as_json(rows: Sequence[Row]) -> str:
    """A list with an object a model; KL in nats."""
    base = rows[0].score.perplexity.value
    out: list[dict[str, Any]] = []
    for row in rows:
        p, d = row.score.perplexity, row.score.divergence
        item = {
            "model": row.name,
            "bytes": row.n_bytes,
            "bits_per_weight": 8 * row.n_bytes / row.n_weights,
            "perplexity": p.value,
            "perplexity_error": p.error,
            "nll": p.nll,
            "n_tokens": p.n_tokens,
        }
        if d is not None:
            item |= {"perplexity_difference": p.value - base, "mean_kl": d.mean_kl,
                     "p99_kl": d.p99_kl, "same_top": d.same_top}  # fmt: skip
        out.append(item)
    return json.dumps(out, indent=2)
