"""`gguflow verify`: whether a model computes on this machine what its file says."""

from __future__ import annotations

import json
import math
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import asdict
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from .columns import columns
from .errors import CHECK_FAILED, OK, UsageError
from .load import model_path, note
from .options import add_engine, add_model, engine_options, whole
from .progress import Bar

if TYPE_CHECKING:
    from gguflow.engine.backends.base import DeviceId
    from gguflow.engine.load import ModelSource
    from gguflow.engine.verify import OpRow, Report
    from gguflow.engine.verify.logits import GivenLogits

SUMMARY = "check a model's weights, text and every op it runs against the float64 reference"
EPILOG = """\
Every op of a prompt and of single tokens runs by itself on its device, and its result is held to
the reference on the operands that the device had: the normalized mean squared error (NMSE), and
what the op's own tests allow. An error shows where it is made, so the first op named is at fault.
References take seconds a token and billion weights.

--against DEVICE runs the model there too and compares logits; --against llama.cpp:FILE takes those
of `llama-perplexity --save-all-logits FILE`, or an .npz with ids [n] and logits [n, n_vocab].

exit code 0: all in order; 5: something is not, and is named.

example: gguflow verify -m model.gguf -ngl all --against cpu"""

PARTS = ("weights", "text", "ops")
GIVEN = "llama.cpp:"
MOST_WINDOWS = 8  # of another program's logits


def add_arguments(p: ArgumentParser) -> None:
    add_model(p)
    p.add_argument("path", nargs="?", metavar="FILE", help="the file, in place of -m")
    g = p.add_argument_group("what to check")
    g.add_argument("--only", type=parts, default=PARTS, metavar="LIST",
                   help=f"some of {','.join(PARTS)} (default all)")  # fmt: skip
    g.add_argument("--tokens", type=whole(1, 4096), default=32, metavar="N",
                   help="tokens of the prompt that ops are checked on (default 32)")  # fmt: skip
    g.add_argument("--decode", type=whole(0, 64), default=2, metavar="N",
                   help="single tokens after it (default 2)")  # fmt: skip
    g.add_argument("--against", metavar="WHAT", help="cpu, cuda:0, numpy, or llama.cpp:FILE")
    g.add_argument("--chunks", type=whole(1), default=MOST_WINDOWS, metavar="N",
                   help=f"windows of llama.cpp's logits (default {MOST_WINDOWS})")  # fmt: skip
    g.add_argument("--full", action="store_true", help="a line for every op of every run")
    g.add_argument("--json", action="store_true", help="one JSON document")
    add_engine(p)


def parts(text: str) -> tuple[str, ...]:
    """Converter for a list of PARTS."""
    names = tuple(text.split(","))
    for name in names:
        if name not in PARTS:
            raise ArgumentTypeError(f"{name}: expected some of {', '.join(PARTS)}")
    return names


def run(args: Namespace) -> int:
    if args.path is not None:
        if args.model is not None:
            raise UsageError("-m/--model and FILE exclude each other")
        args.model = args.path
    from gguflow.engine.load import open_model
    from gguflow.engine.verify import LogitsError, Settings, verify

    source = open_model(model_path(args))
    try:
        against = _against(args, source)
    except LogitsError as e:
        raise UsageError(f"--against {e}") from None
    settings = Settings(
        args.tokens, args.decode, against=against, **{name: name in args.only for name in PARTS}
    )
    text = (files("gguflow.models") / "bundled" / "heldout.txt").read_text(encoding="utf-8")
    for line in source.notes:
        note(line)
    with Bar(f"verifying {source.path}") as bar, Counter() as counter:
        report = verify(source, engine_options(args), text, settings, counter.seen, bar.update)
    print(_json(report) if args.json else _text(report, args.full))
    return OK if report.ok else CHECK_FAILED


def _against(args: Namespace, source: ModelSource) -> DeviceId | GivenLogits | None:
    from gguflow.engine.backends.base import DeviceId, backend_names
    from gguflow.engine.verify import read_logits
    from gguflow.models.tokenizer import Tokenizer

    if args.against is None:
        return None
    if args.against.startswith(GIVEN):
        tokenizer = Tokenizer.from_metadata(source.metadata, source.path)
        bos = tokenizer.bos if tokenizer.add_bos else None
        path = args.against.removeprefix(GIVEN)
        return read_logits(path, source.arch.hp.n_vocab, bos, args.chunks)
    try:
        device = DeviceId.parse(args.against)
    except LookupError:
        device = None
    if device is None or device.kind not in backend_names() or device.kind == "null":
        raise UsageError(f"--against {args.against}: expected a device or {GIVEN}FILE")
    return device


class Counter:
    """A line on a terminal's stderr that says which op is looked at."""

    def __init__(self) -> None:
        self._show = sys.stderr.isatty()
        self._n = 0

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._show:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def seen(self, row: OpRow) -> None:
        """An op was checked."""
        self._n += 1
        if self._show:
            text = f"{self._n} ops checked, {row.run}: {row.name:.50}"
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


# -- output ----------------------------------------------------------------------------------------

_MARKS = {True: "ok", False: "FAULT", None: ""}


def _text(report: Report, full: bool) -> str:
    from gguflow.engine.verify import by_op

    blocks = []
    if report.rows:
        head = ("op", "backend", "runs", "worst NMSE", "allowed", "", "where")
        rows: list[tuple[Any, ...]] = [head]
        for op, backend, of in by_op(report.rows):
            worst = max(of, key=lambda r: r.share)
            rows.append((op, backend, len(of), _figure(worst.error), _figure(worst.limit),
                         _MARKS[worst.ok], f"{worst.name} ({worst.run})"))  # fmt: skip
        blocks.append(columns(rows, right=(2, 3, 4)))
    if full:
        every = ((r.run, r.name, r.kernel, r.backend, "x".join(map(str, r.shape)),
                  _figure(r.error), _MARKS[r.ok]) for r in report.rows)  # fmt: skip
        blocks.append(columns([("run", "op", "kernel", "backend", "shape", "NMSE", ""), *every],
                              right=(5,)))  # fmt: skip
    if report.checks:
        blocks.append(columns((c.name, _MARKS[c.ok], c.text) for c in report.checks))
    if (d := report.difference) is not None:
        said = (
            f"{d.n} positions, divergence {d.kl:.2e} nats, the same likeliest token in "
            f"{d.same_top:.1%}, largest difference of a log probability {d.worst:.3f}"
        )
        blocks.append(columns([("logits", _MARKS[d.ok], said)]))
    if (bad := report.fault) is not None:
        blocks.append(
            f"the first op that differs: {bad.name}, {bad.op} by {bad.kernel} on {bad.backend} "
            f"({bad.run}): NMSE {_figure(bad.error)}, allowed {_figure(bad.limit)}"
        )
    blocks.append("all in order" if report.ok else "NOT in order")
    return "\n\n".join(blocks)


def _figure(x: float) -> str:
    return "0" if x == 0 else f"{x:.1e}"


def _json(report: Report) -> str:
    bad, d = report.fault, report.difference
    document = {
        "ok": report.ok,
        "checks": [asdict(c) for c in report.checks],
        "first_fault": None if bad is None else _row(bad),
        "ops": [_row(r) for r in report.rows],
        "difference": None if d is None else asdict(d) | {"kl": _number(d.kl), "ok": d.ok},
    }
    return json.dumps(document, ensure_ascii=False)


def _row(r: OpRow) -> dict[str, Any]:
    return asdict(r) | {"error": _number(r.error), "ok": r.ok}


def _number(x: float) -> float | None:
    """None for what JSON has no number for."""
    return x if math.isfinite(x) else None
