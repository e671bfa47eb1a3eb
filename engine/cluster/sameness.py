"""Whether two machines would compute the same bits: the same files by the same program.

Texts go on elsewhere where a replica is lost, and stages compute one text together, so everything
that docs/equal-bits.md lists has to be equal: it is compared before anything is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

import gguflow
from gguflow.engine.backends.base import Backend
from gguflow.engine.gguf import GgufFile
from gguflow.engine.pool import Pool

from .errors import ClusterFileError

PIECE = 32 << 20  # bytes that one thread hashes at a time


def digest(path: str | Path) -> str:
    """A hash of all bytes of a model, its shards included: sha256 of the sha256 of every 32 MiB,
    which all processors work on together. Raises GgufError for what is no model."""
    with GgufFile.open(path) as f:
        shards = [*f.shards]
    return digest_files(shards)


def digest_files(paths: Iterable[str | Path]) -> str:
    """The same of files of any kind, in their order. Raises OSError."""
    whole = sha256()
    with Pool() as pool:
        for path in paths:
            size = os.path.getsize(path)
            whole.update(size.to_bytes(8, "little"))
            for part in pool.map(lambda at, p=path: _piece(p, at), range(0, size, PIECE)):
                whole.update(part)
    return whole.hexdigest()


def _piece(path: str | Path, at: int) -> bytes:
    """Hashed without the lock of Python, and without leaving the file in this process's memory."""
    with open(path, "rb", buffering=0) as file:
        file.seek(at)
        part = sha256()
        left = PIECE
        while left and (data := file.read(min(left, 1 << 20))):
            part.update(data)
            left -= len(data)
        return part.digest()


def check_same(node: str, path: str, found: Sequence[str], wanted: Sequence[str]) -> None:
    """Hold a node's hashes against those of the machine that answers requests. Raises
    ClusterFileError."""
    for mine, theirs in zip(found, wanted, strict=True):
        if mine != theirs:
            raise ClusterFileError(
                f"node {node}: {path} is another file there: sha256 {mine[:16]}..., expected "
                f"{theirs[:16]}..."
            )


def program(backends: Iterable[Backend]) -> str:
    """What computes: this project's version and each device's kind. Equal texts, equal bits."""
    kinds = sorted({f"{b.id.kind} {b.processor}".strip() for b in backends if b.processor})
    return f"gguflow {gguflow.__version__} on {', '.join(kinds)}"
