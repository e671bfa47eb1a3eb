"""`gguflow sparse show`: what is in a file of activation counts or a split."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from ..columns import columns
from ..errors import OK

if TYPE_CHECKING:
    from gguflow.engine.variants.relu.split import StoredSplit

SUMMARY = "show activation counts or a split, by layer"
EPILOG = """\
Reads what `sparse stats` and `sparse solve` write, and PowerInfer's .generated.gpuidx files. With
--stats, also says what share of the activity a split takes to the GPU.

example: gguflow sparse show model.gpuidx --stats counts.gguf"""


def add_arguments(p: ArgumentParser) -> None:
    p.add_argument("file", metavar="FILE", help="the file to show")
    p.add_argument("--stats", metavar="FILE", help="activation counts, to hold a split against")


def run(args: Namespace) -> int:
    from gguflow.engine.gguf import GgufFile
    from gguflow.engine.variants.relu.split import open_split
    from gguflow.engine.variants.relu.stats import FORMAT, read_stats

    from .stats import report

    with GgufFile.open(args.file, empty_tensors=True) as f:
        kind = f.keys.text("general.architecture", None)
    if kind == FORMAT:
        stats = read_stats(args.file)
        print(report(stats))
        print(f"model hash {stats.model_hash}")
    else:
        print(show_split(open_split(args.file), args.stats))
    return OK


def show_split(stored: StoredSplit, stats_path: str | None) -> str:
    """A table by layer, and what the file says of itself."""
    from gguflow.engine.compile import human_bytes
    from gguflow.engine.variants.relu.stats import read_stats

    split = stored.split
    head = ["layer", "on GPU", "%"]
    rows = [[str(i), str(n), f"{100 * n / split.n_ff:.1f}"] for i, n in enumerate(split.n_gpu)]
    if stats_path is not None:
        stats = read_stats(stats_path)
        check_same_size(stored, len(stats.counts), len(stats.counts[0]), stats_path)
        head.append("of activity %")
        for row, bucket, count in zip(rows, split.buckets, stats.counts, strict=True):
            row.append(f"{100 * count[bucket].sum() / max(count.sum(), 1):.1f}")
    n_gpu, n = sum(split.n_gpu), split.n_ff * split.n_layer
    whole = f"{n_gpu} of {n} neurons ({n_gpu / n:.1%}), made for {human_bytes(stored.vram_bytes)}"
    owner = f"model hash {stored.model_hash}" if stored.model_hash else "no model hash"
    return f"{columns([head, *rows], right=range(4))}\n{whole}, {owner}"


def check_same_size(stored: StoredSplit, n_layer: int, n_ff: int, path: str) -> None:
    """Raises ModelError when statistics and a split are of models of different sizes."""
    from gguflow.models.base import ModelError

    split = stored.split
    if (split.n_layer, split.n_ff) != (n_layer, n_ff):
        raise ModelError(
            f"{path}: {n_layer} layers of {n_ff} neurons; {stored.path} has {split.n_layer} of "
            f"{split.n_ff}"
        )
