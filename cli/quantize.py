"""`gguflow quantize`: a copy of a GGUF file in smaller element types."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguflow.engine.harmless import one_line
from gguflow.engine.limits import MAX_THREADS

from .errors import OK, UsageError
from .load import note
from .options import whole
from .progress import Bar

if TYPE_CHECKING:
    from gguflow.engine.gguf import GgufFile
    from gguflow.engine.quantize import Change

SUMMARY = "write a model in smaller element types"
EPILOG = """\
types: F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M
Q6_K IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4_MOE, as in llama.cpp: the K names are mixes, in which the
tensors that matter most get more bits.
Without OUT the file is IN's name with the type in it: model-f16.gguf becomes model-Q4_K_M.gguf.

example: gguflow quantize model-f16.gguf model-q4.gguf Q4_K_M"""


def add_arguments(p: ArgumentParser) -> None:
    p.usage = "gguflow quantize [options] IN.gguf [OUT.gguf] TYPE [THREADS]"
    p.add_argument("words", nargs="+", metavar="IN [OUT] TYPE",
                   help="the model to read, the file to write, the type")  # fmt: skip
    p.add_argument("-t", "--threads", type=whole(1, MAX_THREADS), metavar="N",
                   help="threads; default: all processors")  # fmt: skip
    p.add_argument("--pure", action="store_true", help="one type for all matrices instead of a mix")
    p.add_argument("--tensor-type", "--keep", type=_override, action="append", default=[],
                   metavar="REGEX=TYPE", dest="tensor_type",
                   help="the type of the tensors whose name matches, e.g. attn_v=q8_0; "
                   "REGEX=same leaves them as they are; can be given again")  # fmt: skip
    p.add_argument("--leave-output-tensor", action="store_true",
                   help="leave output.weight as it is")  # fmt: skip
    p.add_argument("--allow-requantize", action="store_true",
                   help="convert quantized tensors too, at a loss of quality")  # fmt: skip
    p.add_argument("--imatrix", metavar="FILE",
                   help="weigh errors by an importance matrix: of gguflow imatrix or "
                   "llama-imatrix, GGUF or the older .dat")  # fmt: skip
    p.add_argument("--dry-run", action="store_true", help="only say what the sizes would be")
    p.add_argument("-v", "--verbose", action="store_true", help="print every tensor")


def _override(text: str) -> tuple[re.Pattern[str], str]:
    """`REGEX=TYPE`; whether there is such a type is checked later, with the engine at hand."""
    pattern, equals, name = text.rpartition("=")
    if not equals or not pattern or not name:
        raise ArgumentTypeError(f"{text}: expected REGEX=TYPE")
    try:
        return re.compile(pattern), name
    except re.error as e:
        raise ArgumentTypeError(f"{text}: {e}") from None


def run(args: Namespace) -> int:
    from gguflow.engine.gguf import GgufFile
    from gguflow.engine.quantize import AlreadyQuantized, plan_changes, quantize_file
    from gguflow.engine.requantize import native_converter

    source, out, mix, threads = parse_words(args.words)
    overrides = _overrides(args)
    with GgufFile.open(source) as file:
        out = out or derived_name(source, mix)
        check_output(file, out)
        importance = None
        if args.imatrix is not None:
            from gguflow.engine.imatrix import read_imatrix

            importance = read_imatrix(args.imatrix)
            note_unweighted(mix)
        changes = plan_changes(file, mix, args.pure, overrides, importance is not None)
        report = Report(changes, args.verbose)
        if args.dry_run:
            report.rest()
        else:
            by = native_converter(args.threads or threads)
            with Bar(f"quantizing to {mix}") as bar:
                update = report.follow(bar.update)
                try:
                    quantize_file(
                        file, out, mix, changes, by, args.allow_requantize, update, importance
                    )
                except AlreadyQuantized as e:
                    raise UsageError(f"{e}, or give --allow-requantize") from None
            report.rest()
    report.summary(None if args.dry_run else out)
    return OK


def note_unweighted(mix: str) -> None:
    """Says so where most matrices get a type whose search weighs nothing."""
    from gguflow.engine.quants import codec
    from gguflow.models.mixes import find_mix

    base = codec(find_mix(mix).base)
    if not base.weighted:
        note(f"{base.dtype.name} is rounded without a search: --imatrix weighs other types alone")


def parse_words(words: Sequence[str]) -> tuple[str, str | None, str, int | None]:
    """IN [OUT] TYPE [THREADS] -> in, out, type name, threads. Raises UsageError."""
    from gguflow.models.mixes import MIXES

    rest = list(words)
    types = type_names()
    threads = None
    if len(rest) > 2 and rest[-1].isdigit() and rest[-2].upper() in types:
        try:
            threads = whole(1, MAX_THREADS)(rest.pop())
        except ArgumentTypeError as e:
            raise UsageError(f"THREADS {e}") from None
    if not 2 <= len(rest) <= 3:
        raise UsageError("expected IN.gguf [OUT.gguf] TYPE; see gguflow quantize --help")
    mix = types.get(rest[-1].upper())
    if mix is None:
        raise UsageError(f"unknown quantization {rest[-1]!r}; have {', '.join(MIXES)}")
    return rest[0], rest[1] if len(rest) == 3 else None, mix, threads


def type_names() -> dict[str, str]:
    """The mix for every word that means one: its name, an alias, its general.file_type number."""
    from gguflow.engine.quantize import file_type
    from gguflow.models.mixes import ALIASES, MIXES

    return {m: m for m in MIXES} | ALIASES | {str(file_type(m)): m for m in MIXES}


def derived_name(source: str, mix: str) -> str:
    """The output's name: a type or shard number that ends the input's name is replaced."""
    path = Path(source)
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", path.name.removesuffix(".gguf"))
    stem = re.sub(r"(?i)[-._](f32|f16|bf16|fp16|fp32|i?q\d\w*|tq\d\w*|mxfp4\w*)$", "", stem)
    return str(path.with_name(f"{stem}-{mix}.gguf"))


def check_output(file: GgufFile, out: str) -> None:
    """Refuses to write over the input. Raises UsageError."""
    for shard in file.shards:
        if os.path.exists(out) and os.path.samefile(shard, out):
            raise UsageError(f"{out}: input and output are the same file")


def _overrides(args: Namespace) -> list[Any]:
    from gguflow.engine.quantize import Override, writable_type

    found = []
    for pattern, name in args.tensor_type:
        try:
            dtype = None if name.lower() == "same" else writable_type(name)
        except ValueError as e:
            raise UsageError(f"--tensor-type {pattern.pattern}={e}") from None
        found.append(Override(pattern, dtype))
    if args.leave_output_tensor:
        found.append(Override(re.compile(r"^output\.weight$"), None))
    return found


class Report:
    """Says what becomes of every tensor, and of the whole file, on stderr."""

    def __init__(self, changes: Sequence[Change], verbose: bool) -> None:
        self.changes = changes
        self.verbose = verbose
        self.n_said = 0

    def follow(self, update: Callable[[int, int, str], None]) -> Callable[[int, int, str], None]:
        """A progress callback that also prints the tensors as they are reached."""

        def progress(done: int, total: int, name: str) -> None:
            update(done, total, name)
            while self.n_said < len(self.changes) and (
                self.n_said == 0 or self.changes[self.n_said - 1].info.name != name
            ):
                self._say_next()

        return progress

    def rest(self) -> None:
        """Print the tensors not printed yet."""
        while self.n_said < len(self.changes):
            self._say_next()

    def _say_next(self) -> None:
        change, i = self.changes[self.n_said], self.n_said + 1
        self.n_said += 1
        if self.verbose:
            info, name = change.info, one_line(change.info.name)
            after = f"-> {change.target.name}" if change.converts else "kept"
            kind = f"{info.dtype.name} {after}"
            note(
                f"[{i:4d}/{len(self.changes):4d}] {name:<32} {list(info.shape)!s:>16} "
                f"{kind:<14} {mib(info.nbytes)} -> {mib(change.nbytes)}"
            )

    def summary(self, out: str | None) -> None:
        """Sizes before and after, bits a weight."""
        n = sum(prod(c.info.shape) for c in self.changes)
        before = sum(c.info.nbytes for c in self.changes)
        after = sum(c.nbytes for c in self.changes)
        note(f"before: {mib(before)}, {8 * before / max(n, 1):.2f} bits a weight")
        note(f"after:  {mib(after)}, {8 * after / max(n, 1):.2f} bits a weight")
        if out is not None:
            note(f"wrote {out}")


def mib(n_bytes: int) -> str:
    """A size as text."""
    return f"{n_bytes / 2**20:.2f} MiB"
