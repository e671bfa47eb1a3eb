"""One model over several cards, beside fewer: speeds, exchanges, results.

    python bench/cards.py 2 --shapes llama3-8b:Q4_0,llama3-8b:F16 [-p 512] [-n 128]
        [--sequences 1,16,64,128] [-ntg 128] [--equal] [--steps 1,128] [-r 3] [--alone 0]
    python bench/cards.py 2 --exchanges [--constants mine.json]
    python bench/cards.py 4 --all [--base 2] [--within 300] [--pieces exchanges,llama3-70b:F16]

For each shape, with random weights that are loaded once (card_model.py): tokens per second on
--base cards (one) and on all, and their ratio; with --alone 0 only on all. On fewer cards several
shapes are measured at once, each on cards of its own. Beside each figure stands what `gguflow
scale` forecasts for cards of --machine, and how far it is off. --equal: how far logits of a prompt
and of steps are from the fewer cards', and whether they have the same bits when they are made
again. --steps: the time of a prompt and of decode steps of so many sequences by op, of each card.

--exchanges: microseconds of an all_reduce by size of the parts, in the form that is chosen and in
both, and of NCCL's where torch is there, and of a prompt's sums with their norms, from chains of
them; --constants writes those of two cards as a machine for `gguflow scale`, whose other figures
are the h200 preset's.

--all: all of that for the shapes whose curves docs/scaling.md shows, at 1, 16, 64 and 128
sequences, piece by piece, each with the seconds it took. --pieces: only these, in this order.
--within: seconds after which no further piece is begun, and what is under way is ended; the names
of those that are left are printed as --pieces wants them. A model that does not fit on --base cards
says so, and is measured on all alone. All print JSON lines after what people read.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from card_exchanges import exchanges, prompts
from card_model import SEQ_PROMPT

from gguflow.engine.load.random import random_model
from gguflow.engine.scaling import Question, find_machine, forecast
from gguflow.engine.scaling.machine import H200

EXCHANGES = "exchanges"
# In an order in which those that fit on as many cards are beside each other.
CURVES = ("llama3-8b:F16", "llama3-8b:Q4_0", "llama3-70b:Q4_0", "llama3-70b:Q8_0", "llama3-70b:F16")
SEQUENCES = "1,16,64,128"
SHOWN = 10  # ops of a step
ASKED = ("machine", "sequences", "split", "p", "n", "ntg")  # that a forecast depends on


# -- measuring -------------------------------------------------------------------------------------


@dataclass
class Measured:
    """Of a shape on some cards. speeds: tokens per second by test. us: by step, card and op."""

    speeds: dict[str, float] = field(default_factory=dict)
    us: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    logits: Path | None = None
    same_bits: bool | None = None
    seconds: float = 0.0


def measure(shape: str, devices: Sequence[str], folder: str, args: argparse.Namespace) -> Measured:
    """In a process of its own; what it had found when time was over counts too."""
    found, began = Measured(), time.monotonic()
    path = Path(folder) / f"{shape.replace(':', '-')}-{len(devices)}.npy"
    command = [
        sys.executable, str(Path(__file__).with_name("card_model.py")), shape,
        "--devices", ",".join(devices), "-sm", args.split, "-p", str(args.p), "-n", str(args.n),
        "-ntg", str(args.ntg), "-r", str(args.r), "-t", str(args.threads),
        "--sequences", args.sequences, "--steps", args.steps,
        *(["--logits", str(path)] if args.equal else []),
    ]  # fmt: skip
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as child:
        left = max(args.until - began, 5.0) if args.until else None
        where = f"{shape} on {','.join(devices)}"
        try:
            out, said = child.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            child.kill()
            out, _ = child.communicate()
            print(f"{where}: ended after {left:.0f} s", flush=True)
        else:
            if child.returncode:
                lines = said.strip().splitlines() or [f"exit code {child.returncode}"]
                print(f"{where}: {lines[-1]}", flush=True)
    for line in out.splitlines():
        row = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
        if "test" in row:
            found.speeds[row["test"]] = row["speed"]
        elif "step" in row:
            found.us[row["step"]] = row["us"]
        elif "same_bits" in row:
            found.same_bits, found.logits = row["same_bits"], path
    found.seconds = time.monotonic() - began
    return found


def forecasts(shape: str, cards: Sequence[int], options: dict[str, Any]) -> dict[str, list[float]]:
    """Tokens per second by test, for each number of cards, as the model of cost has them."""
    source, machine = random_model(shape), find_machine(options["machine"])
    many = [int(n) for n in options["sequences"].split(",") if n]
    found: dict[str, list[float]] = {}
    for n in cards:
        common: dict[str, Any] = {"cards": (n,), "split": options["split"]}
        alone = Question(**common, n_prompt=options["p"], n_depth=max(options["n"] // 2, 1))
        for row in forecast(source, machine, alone)[0]:
            name = f"tg{options['n']}" if row.test == "tg" else row.test
            found.setdefault(name, []).append(row.speed)
        if many:
            several = Question(
                **common, sequences=many, n_prompt=0, n_depth=SEQ_PROMPT + options["ntg"] // 2
            )
            for row in forecast(source, machine, several)[0]:
                found.setdefault(f"{row.sequences} sequences", []).append(row.speed)
    return found


# -- what is shown ---------------------------------------------------------------------------------


def show(shape: str, fewer: Measured, every: Measured, expected: dict[str, list[float]],
         n: int, args: argparse.Namespace) -> None:  # fmt: skip
    for test in dict.fromkeys([*fewer.speeds, *every.speeds]):
        few, many = fewer.speeds.get(test), every.speeds.get(test)
        said_few, said_many = expected.get(test, [None, None])
        print(f"{shape:20} {test:14} {_beside(few, said_few)} {_beside(many, said_many)}"
              f" {many / few if few and many else 0.0:6.2f}", flush=True)  # fmt: skip
        row = {"shape": shape, "test": test, "base": args.base, "fewer": few, "cards": n,
               "all": many, "forecast": [said_few, said_many]}  # fmt: skip
        print(json.dumps(row), flush=True)
    for name, m in (("fewer", fewer), ("all", every)):
        for step, by_card in m.us.items():
            for card, ops in by_card.items():
                top = ", ".join(f"{op} {us:.0f}" for op, us in list(ops.items())[:SHOWN])
                print(f"{shape} {step}, {name}, {card}: {sum(ops.values()):.0f} us: {top}")
            print(json.dumps({"shape": shape, "step": step, "cards": name, "us": by_card}))
    if fewer.logits and every.logits:
        one, all_ = np.load(fewer.logits).astype(np.float64), np.load(every.logits)
        nmse = float(((all_ - one) ** 2).sum() / (one**2).sum())
        print(json.dumps({"shape": shape, "cards": n, "nmse": nmse, "same_bits": every.same_bits}))
    elif every.same_bits is not None:
        print(json.dumps({"shape": shape, "cards": n, "same_bits": every.same_bits}))
    taken = [round(fewer.seconds, 1), round(every.seconds, 1)]
    print(json.dumps({"piece": shape, "seconds": taken}), flush=True)


def _beside(speed: float | None, said: float | None) -> str:
    """A figure, and how far the forecast is off."""
    off = f"{said / speed - 1:+5.0%}" if speed and said else "    -"
    return f"{speed:10.1f} {off}" if speed else f"{'-':>10} {off}"


# -- pieces ----------------------------------------------------------------------------------------


def groups(pieces: Sequence[str], size: int) -> Iterator[list[str]]:
    """Shapes that are measured side by side on fewer cards; what is no shape by itself."""
    at = 0
    while at < len(pieces):
        n = 1
        while pieces[at] != EXCHANGES and n < size and at + n < len(pieces):
            if pieces[at + n] == EXCHANGES:
                break
            n += 1
        yield list(pieces[at : at + n])
        at += n


def run_pieces(names: list[str], pieces: Sequence[str], args: argparse.Namespace) -> None:
    asked = {name: getattr(args, name) for name in ASKED}
    context = get_context("spawn")  # of a process that may have threads and cards
    done = 0
    with ProcessPoolExecutor(2, context) as apart, tempfile.TemporaryDirectory() as folder:
        cards = (args.base, len(names))
        expected = {s: apart.submit(forecasts, s, cards, asked) for s in pieces if s != EXCHANGES}
        for group in groups(pieces, len(names) // args.base):
            if args.until and time.monotonic() > args.until:
                print(f"time is over; left: --pieces {','.join(pieces[done:])}", flush=True)
                break
            done += len(group)
            if group == [EXCHANGES]:
                run_exchanges(names, args)
            else:
                run_shapes(names, group, expected, folder, args)
        apart.shutdown(cancel_futures=True)


def run_exchanges(names: list[str], args: argparse.Namespace) -> None:
    began = time.monotonic()
    # In a process of its own, which leaves no memory of cards behind.
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:
        apart.submit(exchanges, names, args.constants).result()
        apart.submit(prompts, names).result()
    print(json.dumps({"piece": EXCHANGES, "seconds": round(time.monotonic() - began, 1)}))


def run_shapes(names: list[str], shapes: list[str], expected: dict[str, Future[Any]],
               folder: str, args: argparse.Namespace) -> None:  # fmt: skip
    fewer = [Measured() for _ in shapes]
    if args.alone:
        with ThreadPoolExecutor(len(shapes)) as side_by_side:
            own = [names[k * args.base : (k + 1) * args.base] for k in range(len(shapes))]
            runs = [side_by_side.submit(measure, s, d, folder, args)
                    for s, d in zip(shapes, own, strict=True)]  # fmt: skip
            fewer = [r.result() for r in runs]
    for shape, few in zip(shapes, fewer, strict=True):
        every = measure(shape, names, folder, args)
        show(shape, few, every, expected[shape].result(), len(names), args)


def main() -> None:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("cards", type=int)
    p.add_argument("--kind", default="cuda", help="of devices (default cuda)")
    p.add_argument("--shapes", default="")
    p.add_argument("-sm", dest="split", default="tensor", choices=("layer", "tensor"))
    p.add_argument("-p", type=int, default=512)
    p.add_argument("-n", type=int, default=128)
    p.add_argument("-ntg", type=int, default=128, help="of each of many sequences (default 128)")
    p.add_argument("-r", type=int, default=3)
    p.add_argument("-t", dest="threads", type=int, default=8)
    p.add_argument("--sequences", default="")
    p.add_argument("--alone", type=int, default=1)
    p.add_argument("--equal", action="store_true")
    p.add_argument("--steps", default="", metavar="N,...")
    p.add_argument("--exchanges", action="store_true")
    p.add_argument("--constants", metavar="FILE")
    p.add_argument("--all", action="store_true")
    p.add_argument("--pieces", default="", metavar="LIST")
    p.add_argument("--within", type=float, default=0.0, metavar="SECONDS")
    p.add_argument("--base", type=int, default=1, metavar="N")
    p.add_argument("--machine", default=H200.name, metavar="NAME|FILE")
    args = p.parse_args()
    args.until = time.monotonic() + args.within if args.within else 0.0
    if args.constants and args.cards != 2:
        p.error("--constants: of the exchanges between 2 cards")
    if not 1 <= args.base < args.cards:
        p.error("--base: expected fewer cards than there are in all")
    pieces = [s for s in args.shapes.split(",") if s]
    pieces = [EXCHANGES, *pieces] if args.exchanges else pieces
    if args.all or args.pieces:
        args.sequences = args.sequences or SEQUENCES
        args.steps = args.steps or "1,128"
        args.equal = True
        pieces = [s for s in args.pieces.split(",") if s] or [EXCHANGES, *CURVES]
    for shape in pieces:
        if shape != EXCHANGES:
            random_model(shape)  # an unknown one should not show after the others have run
    run_pieces([f"{args.kind}:{k}" for k in range(args.cards)], pieces, args)


if __name__ == "__main__":
    main()
