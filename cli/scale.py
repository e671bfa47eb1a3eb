"""`gguflow scale`: what several cards and machines would give, before there are any."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from gguflow.engine.limits import MAX_SEQS

from .bench_grid import Extend, numbers
from .columns import columns
from .errors import OK, UsageError
from .load import note, open_source
from .options import add_model, add_random, real, whole

if TYPE_CHECKING:
    from gguflow.engine.scaling import Forecast, Machine

SUMMARY = "forecast tokens per second for several cards and machines"
MAX_MACHINES = 1024
MAX_CARDS = 64
EPILOG = """\
Nothing is loaded and no device is needed: the engine's own plans say what a run reads, computes and
exchanges, constants of a machine how long that takes. --machine is one that is known (h200,
zen4-2c) or a JSON file, as `python bench/cards.py N --constants FILE` writes it.

pp: a prompt; tg: a token for each of --sequences; served: requests that come at random to
replicas, at 80 % of what they can do, with the seconds to the first token of half and of 95 % of
them. "in turn": one stage works at a time, as it does today; "overlapped": the next piece of a
prompt, or another group of sequences, is in the stages that would wait. bubbles: the share of
time that stages wait. Every figure is a forecast; docs/scaling.md says how far they were off.

examples:
  gguflow scale --random llama3-8b:F16 --cards 1,2,4,8 --sequences 1,16,64
  gguflow scale --random llama3-70b:F16 --cards 2,8 -sm layer -p 4096
  gguflow scale -m model.gguf --machine mine.json --machines 1,8,64 --wire-us 20"""


def add_arguments(p: ArgumentParser) -> None:
    add_model(p)
    add_random(p)
    p.add_argument("--machine", default="h200", metavar="NAME|FILE",
                   help="constants of a machine (default h200)")  # fmt: skip

    def many(*names: str, least: int, most: int, default: int, help: str, dest: str) -> None:
        p.add_argument(*names, dest=dest, type=numbers(least, most), default=[default],
                       action=Extend, metavar="N", help=f"{help} (default {default})")  # fmt: skip

    many("--cards", least=1, most=MAX_CARDS, default=1, help="of a machine", dest="cards")
    many("--machines", least=1, most=MAX_MACHINES, default=1, dest="machines",
         help="as replicas, and as stages of one pipeline")  # fmt: skip
    many("--sequences", "-npl", least=1, most=MAX_SEQS, default=1, dest="sequences",
         help="at once, of each replica or pipeline")  # fmt: skip
    p.add_argument("-sm", "--split-mode", choices=("layer", "tensor"), default="tensor",
                   help="how a model is split over cards (default tensor)")  # fmt: skip
    p.add_argument("-p", "--n-prompt", type=whole(0), default=512, metavar="N",
                   help="tokens of a prompt; 0 for none (default 512)")  # fmt: skip
    p.add_argument("-ub", "--ubatch-size", type=whole(1), default=512, metavar="N",
                   help="tokens of a piece of it (default 512)")  # fmt: skip
    p.add_argument("-d", "--n-depth", type=whole(0), default=64, metavar="N",
                   help="tokens in the context of a generated one (default 64)")  # fmt: skip
    p.add_argument("--wire-us", type=real, metavar="US",
                   help="from one machine to another, in place of --machine's")  # fmt: skip
    p.add_argument("--wire-gbs", type=real, metavar="GB/s",
                   help="the same, of what is large")  # fmt: skip
    p.add_argument("--json", action="store_true", help="one JSON document")


def run(args: Namespace) -> int:
    if args.wire_us is not None and args.wire_us < 0:
        raise UsageError(f"--wire-us {args.wire_us:g}: expected a number from 0 on")
    if args.wire_gbs is not None and args.wire_gbs <= 0:
        raise UsageError(f"--wire-gbs {args.wire_gbs:g}: expected a number above 0")
    machine = find(args.machine).wired(args.wire_us, args.wire_gbs)
    from gguflow.engine.options import OptionError
    from gguflow.engine.scaling import Question, forecast

    source = open_source(args)
    question = Question(
        sorted({*args.cards}), sorted({*args.machines}), args.split_mode,
        sorted({*args.sequences}), args.n_prompt, args.ubatch_size, args.n_depth,
    )  # fmt: skip
    try:
        rows, notes = forecast(source, machine, question)
    except OptionError as e:
        text = str(e)
        raise UsageError(f"--{text}" if text.startswith("cards") else text) from None
    if args.json:
        found = [asdict(r) for r in rows]
        print(json.dumps({"machine": json.loads(machine.json()), "notes": notes, "rows": found}))
        return OK
    for text in notes:
        note(text)
    print(f"{source.path} on {machine.name} ({machine.source})")
    print(table(rows))
    return OK


def find(name: str) -> Machine:
    """The machine of --machine. Raises UsageError where there is none by that name."""
    from gguflow.engine.scaling import find_machine

    try:
        return find_machine(name)
    except LookupError as e:
        raise UsageError(f"--machine {e.args[0]}") from None


def table(rows: list[Forecast]) -> str:
    """A line a forecast."""
    head = ("cards", "machines", "how", "test", "seqs", "tokens/s", "bubbles", "GiB a card",
            "first token s")  # fmt: skip
    return columns([head, *(_line(r) for r in rows)], right=(0, 1, 4, 5, 6, 7, 8))


def _line(r: Forecast) -> tuple[object, ...]:
    first = "" if r.first is None else f"{r.first[0]:.2f} {r.first[1]:.2f}"
    speed = f"{r.speed:,.0f}" if r.speed >= 100 else f"{r.speed:.1f}"
    return (
        r.cards, r.machines, r.how, r.test, r.sequences, speed if r.fits else "does not fit",
        f"{max(r.bubbles, 0):.0%}", f"{r.gib:.1f}", first,
    )  # fmt: skip
