"""Repacked weights kept from one start to the next: GGUFLOW_CACHE_DIR/weights.

A file holds all weights of one model that one backend repacks. Its name is a hash of what the bytes
depend on: which file they come from (size, times, inode, and samples of its contents), the layout
(`Packer.layout`), and the list of weights. What is found is checked (`kept_file`) and made again if
anything is wrong. The directory and its files are this user's alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from types import TracebackType

import numpy as np

from gguflow.engine import env
from gguflow.engine.backends.forms import Packer
from gguflow.engine.dataclass import dataclass
from gguflow.engine.files import PART, remove_part, whole_file
from gguflow.engine.graph import Tensor

from .kept_file import KeptFileError, NewFile, Plan, check_private, map_file, refuse, title_of
from .source import FileBytes, ModelSource, WeightSource

SUFFIX = ".repacked"
LEAST = 64 << 20  # bytes of packed weights that are worth a file
ROOM = 4  # the cache takes at most one part in so many of what the disk has free


def folder() -> Path:
    """The directory; it need not exist."""
    return env.cache_dir() / "weights"


@dataclass(frozen=True)
class Item:
    """A weight to keep: its tensor, where it comes from, and the bytes it takes packed."""

    tensor: Tensor
    source: WeightSource
    n_bytes: int


class Keeper:
    """Finds and keeps the weights of one model.

    title: what its files are called in a list. identity: gives that of the model's file. notes:
    what the user should know once loading is done. checks: raise GgufError for files found that
    were changed.
    """

    def __init__(self, path: str, identity: Callable[[], str]) -> None:
        self.title, self._identity = path, cache(identity)
        self.notes: list[str] = []
        self.checks: list[Callable[[], None]] = []

    def find(self, items: Sequence[Item], packer: Packer) -> Mapping[str, np.ndarray] | None:
        """The packed bytes of `items` by name, or None where they are not kept."""
        path, key, plan = self._place(items, packer)
        try:
            check_private(folder().stat(), str(folder()))
            data, check = map_file(path, plan, key, packer.n_threads)
        except FileNotFoundError:
            return None
        except (OSError, KeptFileError) as e:
            self.notes.append(f"{e}; it is made again")
            return None
        with suppress(OSError):
            os.utime(path)  # the oldest goes first
        self.checks.append(check)
        at = zip(items, plan.offsets, strict=True)
        return {i.tensor.name: data[offset : offset + i.n_bytes] for i, offset in at}

    def keep(self, items: Sequence[Item], packer: Packer) -> Making | None:
        """A file to pack `items` into; None where none is to be made."""
        from shutil import disk_usage

        path, key, plan = self._place(items, packer)
        limit = env.weight_cache_bytes()
        if plan.n_data > limit or sys.platform == "win32":
            return None
        try:
            _make_private(folder())
            make_room(limit - plan.n_data)
            free = disk_usage(folder()).free
            if plan.n_data > free // ROOM:
                self.notes.append(
                    f"repacked weights are not kept: {plan.n_data >> 20} MiB are more than a "
                    f"quarter of what the disk of {folder()} has free"
                )
                return None
            return Making(path, key, plan, items, packer, self)
        except (OSError, KeptFileError) as e:
            self.notes.append(f"repacked weights are not kept: {e}")
            return None

    def _place(self, items: Sequence[Item], packer: Packer) -> tuple[Path, bytes, Plan]:
        from hashlib import sha256

        plan = Plan.of([i.n_bytes for i in items])
        digest = sha256(f"{self._identity()}\0".encode())
        digest.update(packer.layout({i.tensor.dtype for i in items}).encode())
        for i in items:
            t = i.tensor
            assert isinstance(i.source.read, FileBytes)
            line = f"\0{i.source.read.origin}\0{t.dtype.name}\0{t.shape}\0{i.n_bytes}"
            digest.update(line.encode())
        key = digest.digest()
        return folder() / f"{key.hex()[:32]}{SUFFIX}", key, plan


def keeper_of(source: ModelSource) -> Keeper | None:
    """A keeper for the weights of a file, if any may be kept."""
    if source.identity is None or not env.weight_cache_bytes():
        return None
    return Keeper(source.path, source.identity)


class Making:
    """A file that fills up while the model is loaded: `with` it, pack to `room`."""

    def __init__(
        self, path: Path, key: bytes, plan: Plan, items: Sequence[Item], packer: Packer,
        keeper: Keeper,
    ) -> None:  # fmt: skip
        self._packer, self._keeper = packer, keeper
        self._at = {i.tensor.name: (n, i.n_bytes) for n, i in enumerate(items)}
        self._n_bytes, self._path = plan.n_data, path
        with ExitStack() as stack:
            # It need not outlive a power cut: the sums tell.
            part = stack.enter_context(whole_file(path, durable=False, mode=0o600))
            self._new = NewFile(part, plan, key, keeper.title)
            self._stack = stack.pop_all()

    def room(self, name: str) -> np.ndarray:
        """Where a weight is packed to: uint8 [packed bytes]."""
        return self._new.room(*self._at[name])

    def __enter__(self) -> Making:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._stack.__exit__(kind, error, trace)
            return
        find = self._new.fault
        try:
            with self._stack:
                self._new.finish(self._packer.n_threads)
                refuse(self._path, find)
            self._keeper.checks.append(lambda: refuse(self._path, find))
        except OSError as e:  # the weights are in memory all the same
            self._keeper.notes.append(f"repacked weights are not kept: {e}")
        else:
            self._keeper.notes.append(
                f"{self._n_bytes >> 20} MiB of repacked weights are kept for the next start "
                "(`gguflow cache`)"
            )


# -- all of them -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """A file of the cache. used: when it was last, in seconds since the epoch; title: the model."""

    path: Path
    n_bytes: int
    used: float
    title: str


def kept() -> list[Kept]:
    """What there is, used last first; leftovers of processes that were killed have no title."""
    found = []
    with suppress(FileNotFoundError):
        for path in folder().iterdir():
            if path.name.endswith((SUFFIX, PART)):
                with suppress(OSError):
                    status = path.lstat()
                    title = title_of(path) if path.name.endswith(SUFFIX) else ""
                    found.append(Kept(path, status.st_size, status.st_mtime, title))
    return sorted(found, key=lambda k: -k.used)


def make_room(limit: int) -> None:
    """Remove files, least recently used first, until the others take at most `limit` bytes."""
    total = 0
    for file in kept():
        if file.path.name.endswith(PART):
            remove_part(file.path)
            continue
        total += file.n_bytes
        if total > limit:
            with suppress(OSError):
                file.path.unlink()


def clear() -> int:
    """Remove all of them; the bytes that are free again. A model that runs keeps its memory."""
    freed = 0
    for file in kept():
        with suppress(OSError):
            if file.path.name.endswith(PART) and not remove_part(file.path):
                continue
            file.path.unlink(missing_ok=True)
            freed += file.n_bytes
    return freed


def _make_private(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    check_private(path.lstat(), str(path))
