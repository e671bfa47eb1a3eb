"""`gguflow sparse eval`: what skipping neurons costs."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gguflow.engine.files import whole_file
from gguflow.engine.limits import MAX_THREADS

from ..errors import CHECK_FAILED, OK, UsageError
from ..load import note
from ..options import real, whole
from .common import add_relu_model, check_output, open_relu

if TYPE_CHECKING:
    from gguflow.engine.variants.relu.tools.evaluate import Result

SUMMARY = "perplexity and missed neurons against the threshold"
EPILOG = """\
Compared with the dense run of the same weights over the windows of `gguflow perplexity`: the exact
sparse mode, the file's own threshold, and any others. Neurons are `computed` when their score
reaches the threshold; `missed` are those that would have fired. The exit code is 5 when the
perplexity at the file's own threshold is more than --tolerance above dense.

example: gguflow sparse eval --curve curve.svg"""


def add_arguments(p: ArgumentParser) -> None:
    add_relu_model(p)
    p.add_argument("--predictor", metavar="FILE", help="predictors to use in place of the model's")
    p.add_argument("-f", "--file", metavar="FILE",
                   help="text to predict; default: a bundled one that the bundled model "
                   "was not trained on")  # fmt: skip
    p.add_argument("-c", "--ctx-size", type=whole(4), default=512, metavar="N",
                   help="tokens a window (default 512)")  # fmt: skip
    p.add_argument("--chunks", type=whole(1), metavar="N", help="only the first N windows")
    p.add_argument("--thresholds", type=_numbers, default=(), metavar="LIST",
                   help="others to try, for all layers: -1,0,0.5 (-inf skips nothing)")  # fmt: skip
    p.add_argument("--sweep", action="store_true",
                   help="try thresholds that skip 30 to 95 %% of the neurons")  # fmt: skip
    p.add_argument("--curve", metavar="FILE.svg", help="draw the sweep (which it implies)")
    p.add_argument("--tolerance", type=real, default=0.01, metavar="SHARE",
                   help="by how much perplexity may rise at the default (0.01)")  # fmt: skip
    p.add_argument("-t", "--threads", type=whole(1, MAX_THREADS), metavar="N",
                   help="threads; default: all processors")  # fmt: skip
    p.add_argument("-o", "--output", choices=("md", "json"), default="md",
                   help="tables in Markdown (default) or JSON")  # fmt: skip


def _numbers(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"{text}: expected numbers with commas between them") from None
    if any(v != v for v in values):
        raise ArgumentTypeError(f"{text}: a threshold cannot be NaN")
    return values


def run(args: Namespace) -> int:
    from gguflow.engine.options import Options
    from gguflow.engine.variants.relu.source import missing_predictor
    from gguflow.engine.variants.relu.tools.curve import curve_svg
    from gguflow.engine.variants.relu.tools.evaluate import compare
    from gguflow.models.base import ModelError

    from ..perplexity import Progress
    from .stats import token_windows

    if args.curve and not args.curve.endswith(".svg"):
        raise UsageError(f"--curve {args.curve}: draws SVG, the name must end in .svg")
    check_output("--curve", args.curve)
    source = open_relu(args)
    if args.curve and not args.predictor and missing_predictor(source):
        raise ModelError(f"{source.path} has no predictors, so there is no threshold to draw")
    chunks = token_windows(args, source)
    note(f"{Path(source.path).name}: {len(chunks)} windows of {args.ctx_size} tokens")
    options = Options(
        n_ctx=args.ctx_size, n_threads=args.threads or 0, predictor=args.predictor or ""
    )
    progress = Progress(len(chunks))
    results = compare(
        source, options, chunks, args.thresholds, args.sweep or bool(args.curve),
        lambda done, value: progress.update("dense", done, value),
    )  # fmt: skip
    progress.clear()
    print(markdown(results) if args.output == "md" else as_json(results))
    if args.curve:
        title = f"{Path(source.path).name}: what skipping neurons costs"
        with whole_file(args.curve) as part:
            part.write_text(curve_svg(results, title), encoding="utf-8")
        note(f"wrote {args.curve}")
    return verdict(results, args.tolerance)


def rise(results: Sequence[Result], r: Result) -> float:
    """Perplexity above the dense run's, as a share of it."""
    return r.score.perplexity.value / results[0].score.perplexity.value - 1


def verdict(results: Sequence[Result], tolerance: float) -> int:
    """The exit code, by the file's own threshold, or by the exact form without a predictor."""
    own = next((r for r in results if r.counts), results[1])
    above = rise(results, own)
    if above <= tolerance:
        return OK
    print(
        f"gguflow: perplexity at the default threshold is {above:.2%} above dense, more than "
        f"{tolerance:.2%}",
        file=sys.stderr,
    )
    return CHECK_FAILED


def markdown(results: Sequence[Result]) -> str:
    """A table of the runs, and one of the layers at the file's threshold."""
    from gguflow.engine.variants.relu.tools.evaluate import total

    head = ["threshold", "skipped", "missed", "perplexity", "above dense", "mean KL", "99 % KL",
            "same top token"]  # fmt: skip
    lines = [head, [":---"] + ["---:"] * (len(head) - 1)]
    for r in results:
        p, d = r.score.perplexity, r.score.divergence
        shares = ["", ""]
        if r.counts:
            t = total(r.counts)
            shares = [f"{t.skipped_share:.2%}", f"{1 - t.recall:.2%}"]
        cells = [r.name, *shares, f"{p.value:.4f} ± {p.error:.4f}"]
        if d is None:
            cells += [""] * 4
        else:
            cells += [f"{rise(results, r):+.3%}", f"{d.mean_kl:.6f}", f"{d.p99_kl:.6f}",
                      f"{d.same_top:.2%}"]  # fmt: skip
        lines.append(cells)
    text = _table(lines)
    own = next((r for r in results if r.counts), None)
    if own is None:
        return text
    head = ["layer", "active", "computed", "skipped", "recall", "precision"]
    lines = [head, ["---:"] * len(head)]
    for name, c in [*enumerate(own.counts), ("all", total(own.counts))]:
        values = (c.active_share, 1 - c.skipped_share, c.skipped_share, c.recall, c.precision)
        lines.append([str(name), *(f"{v:.2%}" for v in values)])
    return f"{text}\n\nAt the file's threshold:\n\n{_table(lines)}"


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def as_json(results: Sequence[Result]) -> str:
    """The same figures, unrounded."""
    rows = []
    for r in results:
        p, d = r.score.perplexity, r.score.divergence
        row = {"run": r.name, "perplexity": p.value, "perplexity_error": p.error, "nll": p.nll,
               "n_tokens": p.n_tokens, "above_dense": rise(results, r)}  # fmt: skip
        if r.threshold is not None:
            row["threshold"] = r.threshold if abs(r.threshold) != float("inf") else r.name
        if d is not None:
            row |= {"mean_kl": d.mean_kl, "p99_kl": d.p99_kl, "same_top": d.same_top}
        if r.counts:
            row["layers"] = [
                {"neurons": c.all, "computed": c.computed, "fired": c.fired, "missed": c.missed}
                for c in r.counts
            ]
        rows.append(row)
    return json.dumps(rows, indent=2)
