"""`gguflow cache`: what is kept on the disk from one run to the next."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from .columns import columns, size_text
from .errors import OK
from .load import note
from .stream import write

SUMMARY = "repacked weights and compiled kernels kept on the disk: list, clear"
EPILOG = (
    "GGUFLOW_CACHE_DIR says where they are, GGUFLOW_WEIGHT_CACHE how many GiB of repacked weights "
    "there may be (default 16; 0 keeps none). Whatever is cleared is made again when needed."
)
KINDS = ("weights", "cuda", "all")


def add_arguments(p: ArgumentParser) -> None:
    p.add_argument(
        "--clear",
        choices=KINDS,
        nargs="?",
        const="all",
        metavar="KIND",
        help="remove repacked weights (weights), GPU kernels (cuda) or both (all, the default)",
    )


def run(args: Namespace) -> int:
    from gguflow.engine import env
    from gguflow.engine.load import kept

    kernels = env.cache_dir() / "cuda"
    if args.clear is not None:
        freed = kept.clear() if args.clear != "cuda" else 0
        freed += _clear(kernels) if args.clear != "weights" else 0
        note(f"{env.cache_dir()}: {size_text(freed)} are free again")
        return OK
    rows = [
        ("weights", size_text(k.n_bytes), _day(k.used), k.title or "(unfinished)")
        for k in kept.kept()
    ]
    files = _files(kernels)
    if files:
        newest = max(p.stat().st_mtime for p in files)
        rows.append(("cuda", size_text(_size(files)), _day(newest), f"{len(files)} kernels"))
    if rows:
        write(columns(rows, right=[1]) + "\n")
    total = sum(k.n_bytes for k in kept.kept()) + _size(files)
    note(f"{env.cache_dir()}: {size_text(total)}, of at most "
         f"{size_text(env.weight_cache_bytes())} of weights")  # fmt: skip
    return OK


def _files(folder: Path) -> list[Path]:
    return [p for p in folder.glob("*") if p.is_file()] if folder.is_dir() else []


def _size(files: list[Path]) -> int:
    return sum(p.stat().st_size for p in files)


def _clear(folder: Path) -> int:
    files = _files(folder)
    freed = _size(files)
    for file in files:
        file.unlink(missing_ok=True)
    return freed


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
