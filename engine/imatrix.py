"""Importance matrices: how large the inputs of a model's products are, by column, on a text.

File format: llama.cpp's (`llama-imatrix`). GGUF with `general.type` "imatrix": of each weight
`<name>.in_sum2` f32 [matrices, k], sums of squares, and `<name>.counts` f32 [matrices, 1], of how
many rows. Files of its older, binary format are read too.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gguflow.engine.dataclass import dataclass
from gguflow.engine.gguf import GgufError, GgufFile, Typed
from gguflow.engine.graph import F32, Graph, Role, Tensor
from gguflow.engine.opened import open_file

if TYPE_CHECKING:
    from gguflow.engine.model import Model

ROWS = 128  # tokens at a time: the inputs of all products of so many are in memory
_SUMS, _COUNTS = ".in_sum2", ".counts"
_MAX_NAME = 1 << 12  # bytes, in an old file: of a weight, or of the text's path
_INT_MAX = (1 << 31) - 1


@dataclass(frozen=True)
class Importance:
    """Of one weight. sums: float64 [matrices, k], of squares. counts: float64 [matrices].

    Of a file of the older format, a stack of matrices is one: [1, matrices k].
    """

    sums: np.ndarray
    counts: np.ndarray

    @property
    def means(self) -> np.ndarray:
        """Mean squares float32 [matrices, k]; ones for a matrix that nothing went through."""
        n = self.counts[:, None]
        means = np.divide(self.sums, n, out=np.ones_like(self.sums), where=n > 0)
        return means.astype(np.float32)

    def means_of(self, matrices: int, k: int) -> np.ndarray | None:
        """The mean squares for a weight of so many matrices, float32 [1 or matrices, k]; None where
        they are not its own."""
        means = self.means
        if means.shape == (1, matrices * k):
            means = means.reshape(matrices, k)
        return means if means.shape in ((1, k), (matrices, k)) else None


@dataclass(frozen=True)
class ImportanceMatrix:
    """entries: by the name of the weight. datasets: what it was computed on, in n_chunks pieces of
    chunk_size tokens."""

    entries: Mapping[str, Importance]
    datasets: tuple[str, ...]
    n_chunks: int
    chunk_size: int


@dataclass(frozen=True)
class _Use:
    """A product: its weight [matrices, n, k], and which outputs are its input and its ids."""

    weight: str
    matrices: int
    x: int
    ids: int | None


class _Inputs:
    """A rewrite that makes the inputs of products outputs, once each. uses: of its last graph."""

    def __init__(self) -> None:
        self.uses: list[_Use] = []

    def rewrite(self, g: Graph) -> None:
        found: dict[Tensor, int] = {}
        self.uses = []
        for node in g.nodes:
            w, x, ids = (*node.srcs, None, None, None)[:3]
            if node.op not in ("mul_mat", "mul_mat_id") or w is None or x is None:
                continue
            if w.role is Role.WEIGHT and w.name.startswith("blk."):
                chosen = ids if node.op == "mul_mat_id" else None
                at = [None if t is None else found.setdefault(t, len(found)) for t in (x, chosen)]
                assert at[0] is not None
                self.uses.append(_Use(w.name, prod(w.shape[:-2]), at[0], at[1]))
        g.outputs[:0] = found


class _Sums:
    """Sums of squares of what goes through a model's products."""

    def __init__(self) -> None:
        self.sums: dict[str, np.ndarray] = {}
        self.counts: dict[str, np.ndarray] = {}

    def add(self, uses: Sequence[_Use], values: Sequence[np.ndarray]) -> None:
        """Of one run."""
        squares: dict[int, np.ndarray] = {}
        for use in uses:
            if use.x not in squares:
                squares[use.x] = np.square(values[use.x], dtype=np.float64)
            x, k = squares[use.x], values[use.x].shape[-1]
            sums = self.sums.setdefault(use.weight, np.zeros((use.matrices, k)))
            counts = self.counts.setdefault(use.weight, np.zeros(use.matrices))
            if use.ids is None:
                rows = x.reshape(-1, k)
                sums += rows.sum(axis=0)
                counts += len(rows)
                continue
            ids = np.array(values[use.ids]).reshape(-1)
            rows = x if x.ndim == 3 else np.repeat(x, len(ids) // len(x), axis=0)
            for e in np.unique(ids[(ids >= 0) & (ids < use.matrices)]).tolist():
                sums[e] += rows.reshape(-1, k)[ids == e].sum(axis=0)
                counts[e] += np.count_nonzero(ids == e)


def measure(
    model: Model,
    chunks: Sequence[Sequence[int]],
    dataset: str,
    progress: Callable[[int, int], None] | None = None,
) -> ImportanceMatrix:
    """Run sequences of tokens and sum the squares of what every weight of a layer is multiplied by;
    of experts, of what each was given. The output head is left out, as llama.cpp does by default.

    progress: windows done, and all.
    """
    inputs, found = _Inputs(), _Sums()
    # Where a prompt is read in both directions its inputs are those of all of it at once.
    most = ROWS if model.hp.causal else max(map(len, chunks), default=ROWS)
    n_batch = max(most, model.options.n_batch)
    run = model.with_options(n_ubatch=most, n_batch=n_batch, fuse=False).with_rewrite(inputs)
    for i, chunk in enumerate(chunks):
        for values in run.outputs(chunk):
            found.add(inputs.uses, values)
        if progress:
            progress(i + 1, len(chunks))
    entries = {name: Importance(x, found.counts[name]) for name, x in found.sums.items()}
    return ImportanceMatrix(entries, (dataset,), len(chunks), max(map(len, chunks)))


def write_imatrix(path: str | os.PathLike[str], m: ImportanceMatrix) -> None:
    """Raises GgufError for a place that cannot be written to."""
    from gguflow.engine.gguf import write_gguf  # with the gguf package, which reading does not need

    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": Typed("arr[str]", list(m.datasets)),
        "imatrix.chunk_count": Typed("u32", m.n_chunks),
        "imatrix.chunk_size": Typed("u32", m.chunk_size),
    }
    tensors = {}
    for name, e in sorted(m.entries.items()):
        for suffix, x in ((_SUMS, e.sums), (_COUNTS, e.counts[:, None])):
            tensors[name + suffix] = (F32, x.shape, x.astype(np.float32))
    write_gguf(path, metadata, tensors)


def read_imatrix(path: str | os.PathLike[str]) -> ImportanceMatrix:
    """A file of either format. Raises GgufError naming what is wrong in it, or that it cannot be
    read."""
    try:
        with open_file(path, regular=True) as f:
            is_gguf = f.read(4) == b"GGUF"
    except OSError as error:
        raise GgufError(path, "file", error.strerror or error, "an importance matrix") from error
    found = _read_gguf(path) if is_gguf else _read_old(Path(path))
    for name, e in found.entries.items():
        if not (np.isfinite(e.sums).all() and (e.sums >= 0).all() and (e.counts >= 0).all()):
            raise GgufError(str(path), name, "sums that are negative or no numbers", "squares")
    return found


def _read_gguf(path: str | os.PathLike[str]) -> ImportanceMatrix:
    entries: dict[str, Importance] = {}
    with GgufFile.open(path) as f:
        kind = f.keys.text("general.type", None)
        if kind != "imatrix":
            raise GgufError(str(path), "general.type", repr(kind), "'imatrix'")
        for name, info in f.tensors.items():
            if not name.endswith(_SUMS):
                continue
            base = name.removesuffix(_SUMS)
            counts = f.tensors.get(base + _COUNTS)
            if counts is None or not info.dtype.name == counts.dtype.name == "f32":
                raise GgufError(str(path), f"tensor {name}", "no counts of float32", "both")
            n = counts.shape[0] if len(counts.shape) > 1 else 1
            sums = f.data(name).view(np.float32).astype(np.float64)
            if sums.size % n or not sums.size:
                raise GgufError(str(path), f"tensor {name}", f"{sums.size} sums", f"{n} matrices")
            each = f.data(base + _COUNTS).view(np.float32).astype(np.float64)
            entries[base] = Importance(sums.reshape(n, -1), each)
        return ImportanceMatrix(
            entries,
            tuple(f.keys.strings("imatrix.datasets", ())),
            f.keys.integer("imatrix.chunk_count", 0),
            f.keys.integer("imatrix.chunk_size", 0),
        )


def _read_old(path: Path) -> ImportanceMatrix:
    """Little-endian: a number of entries; of each a name, calls, values (means times calls), those
    of all matrices of a stack in a row; then, in most files, the number of chunks and the name of
    the text."""
    size = path.stat().st_size
    with path.open("rb") as f:

        def take(n: int) -> bytes:
            at = f.tell()
            raw = f.read(n) if n <= size - at else b""
            if len(raw) != n:
                raise GgufError(str(path), f"byte {at}", f"{size - at} left", f"{n} more bytes")
            return raw

        def number(least: int, most: int, what: str) -> int:
            at = f.tell()
            (value,) = struct.unpack("<i", take(4))
            if not least <= value <= most:
                raise GgufError(str(path), f"byte {at}: {what}", value, f"{least} to {most}")
            return int(value)

        entries: dict[str, Importance] = {}
        for _ in range(number(1, 1 << 20, "entries")):
            at = f.tell()
            name = take(number(1, _MAX_NAME, "length of a name")).decode("utf-8", "replace")
            calls = number(0, _INT_MAX, "calls")
            n = number(1, 1 << 28, "values")
            if name in entries:
                raise GgufError(str(path), f"byte {at}: {name}", "a second entry", "one")
            values = np.frombuffer(take(4 * n), "<f4").astype(np.float64)
            entries[name] = Importance(values[None], np.array([max(calls, 1)], np.float64))
        if f.tell() == size:
            return ImportanceMatrix(entries, (), 0, 0)
        n_chunks = number(0, _INT_MAX, "chunks")
        text = ""
        if f.tell() < size:
            text = take(number(0, _MAX_NAME, "length of a name")).decode("utf-8", "replace")
        return ImportanceMatrix(entries, (text,) if text else (), n_chunks, 0)
