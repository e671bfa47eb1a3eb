"""Texts to vectors: runs of prompts that end at the final norm, over the engine's own pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.graph import Graph
from gguflow.engine.interrupt import Cancelled
from gguflow.models.base import ModelError

from .flight import Flight
from .kv import KvCache
from .pages import OutOfPages
from .request import Pooling, RequestId
from .rows import Piece, rows_of
from .runner import Runner

NODE = "output_norm"


@dataclass(frozen=True)
class EndAtNorm:
    """A rewrite that leaves the final norm's output alone. path: the model's, for the error."""

    path: str

    def rewrite(self, g: Graph) -> None:
        """Raises ModelError for a graph without that node."""
        found = [n for n in g.nodes if n.name == NODE]
        if not found:
            raise ModelError(f"{self.path}: the graph has no {NODE} to make embeddings of")
        g.outputs[:] = found[:1]


@dataclass(eq=False)
class _Job:
    id: RequestId
    ids: Sequence[int]
    pooling: Pooling
    salt: bytes = b""
    seq: int | None = None
    n_rows: int = 0
    total: np.ndarray | float = 0.0  # of the rows so far, float64
    last: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def vector(self) -> np.ndarray:
        """What the pooling makes of the rows, f32 [n_embd]."""
        if self.pooling == "last":
            return self.last
        return (np.asarray(self.total) / len(self.ids)).astype(np.float32)


class Embedded(NamedTuple):
    """A request's vector, or why there is none."""

    id: RequestId
    vector: np.ndarray | None
    error: Exception | None


class Embedder:
    """Requests in, vectors out; a run at a time, beside those that generate. runner: theirs, whose
    cache has the pages. flight: told of its runs."""

    def __init__(self, runner: Runner, flight: Flight) -> None:
        model = runner.model
        self._runner = runner.over(model.with_rewrite(EndAtNorm(model.source.path)))
        self._kv: KvCache = runner.kv
        self._flight = flight
        self._most = model.options.n_ubatch
        self._waiting: list[_Job] = []
        self._running: list[_Job] = []

    def add(self, id: RequestId, ids: Sequence[int], pooling: Pooling, salt: bytes = b"") -> None:
        """A request whose ids were checked. salt: of its sequence, which names adapters."""
        self._waiting.append(_Job(id, ids, pooling, salt))

    def cancel(self, id: RequestId) -> bool:
        """Forget a request; whether it was there."""
        for jobs in (self._waiting, self._running):
            for job in jobs:
                if job.id == id:
                    jobs.remove(job)
                    self._free(job)
                    return True
        return False

    def step(self) -> list[Embedded]:
        """One run over as many texts as fit; those that are done. What goes wrong ends the requests
        that were in it."""
        batch = self._next()
        if not batch:
            return []
        try:
            self._run(batch)
        except Cancelled:  # whoever still wants its rows gets them next time
            return []
        except Exception as e:
            for job, _ in batch:
                self._running.remove(job)
                self._free(job)
            return [Embedded(job.id, None, e) for job, _ in batch]
        done = [job for job, _ in batch if job.n_rows == len(job.ids)]
        for job in done:
            self._running.remove(job)
            self._free(job)
        return [Embedded(job.id, job.vector, None) for job in done]

    def _next(self) -> list[tuple[_Job, int]]:
        """What the next run computes, with pages for it: texts, and how many of their tokens."""
        left = self._most
        batch: list[tuple[_Job, int]] = []
        while self._waiting and self._kv.n_free_seqs and len(self._running) < self._most:
            job = self._waiting.pop(0)
            job.seq = self._kv.create((), job.salt)
            self._running.append(job)
        for job in self._running:
            assert job.seq is not None
            n = min(len(job.ids) - job.n_rows, left)
            if not n or (self._kv.whole_prompts and n < len(job.ids)):
                break
            n = self._kv.until_checkpoint(job.seq, n)
            try:
                self._kv.grow(job.seq, n)
            except OutOfPages:  # those that generate will give some back
                break
            batch.append((job, n))
            left -= n
        return batch

    def _run(self, batch: Sequence[tuple[_Job, int]]) -> None:
        pieces = []
        for job, n in batch:
            assert job.seq is not None
            pieces.append(Piece(job.seq, job.ids[job.n_rows : job.n_rows + n], n))
        with self._flight.of({job.id: n for job, n in batch}, self._kv.states is None):
            values = self._runner.run(rows_of(self._kv, pieces), every=True)[0]
        at = 0
        for (job, n), piece in zip(batch, pieces, strict=True):
            rows = values[at : at + n]
            # In order, a row at a time: a text's vector does not depend on how it was cut.
            for row in rows.astype(np.float64):
                job.total = job.total + row
            job.last = rows[-1].copy()
            self._kv.advance(piece.seq, piece.ids)
            job.n_rows += n
            at += n

    def _free(self, job: _Job) -> None:
        if job.seq is not None:
            self._kv.trim(job.seq, 0)  # nobody looks for these rows
            self._kv.free(job.seq)
            job.seq = None
