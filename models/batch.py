"""What a graph is built for: the rows of a run, and where their keys and values live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gguflow.engine.graph import F32, I32, I64, DType, Graph, Tensor
from gguflow.engine.plan_key import PAGE, PlanKey


@dataclass(frozen=True)
class CacheLayer:
    """What a layer keeps of every token: widths of its key and value rows, 0 for none.

    window: how many of the last tokens it needs; 0 for all.
    """

    n_k: int
    n_v: int
    window: int = 0

    @property
    def group(self) -> str:
        """Layers of one group share pages and page tables."""
        return f"window{self.window}" if self.window else "full"


@dataclass(frozen=True)
class CacheSize:
    """Pages of the KV cache by group, and entries of a sequence's page tables."""

    n_pages: Mapping[str, int]
    n_entries: int


@dataclass(frozen=True)
class LayerKv:
    """A layer's states, the rows that the run's tokens write, and the page tables to read by."""

    k: Tensor
    v: Tensor
    rows: Tensor
    table: Tensor


@dataclass(frozen=True)
class Batch:
    """The rows of a run and the cache they live in. k_type, v_type: the cache's element types."""

    key: PlanKey
    cache: CacheSize
    k_type: DType
    v_type: DType

    def inputs(self, g: Graph) -> Inputs:
        """Declare the inputs that every decoder has."""
        return Inputs(g, self)


class Inputs:
    """A run's inputs. tokens, pos, seq: i32 [n_tokens], -1 where padded (see `PlanKey`)."""

    def __init__(self, g: Graph, batch: Batch) -> None:
        n = batch.key.n_tokens
        self._g, self._batch = g, batch
        self.key = batch.key
        self.tokens, self.pos, self.seq = (g.input(t, I32, (n,)) for t in ("tokens", "pos", "seq"))

    def kv(self, i: int, layer: CacheLayer) -> LayerKv:
        """States and indices of layer i."""
        g, b, group = self._g, self._batch, layer.group
        n_rows = b.cache.n_pages[group] * PAGE
        return LayerKv(
            g.state(f"kv.{i}.k", b.k_type, (n_rows, layer.n_k)),
            g.state(f"kv.{i}.v", b.v_type, (n_rows, layer.n_v)),
            g.input(f"rows.{group}", I32, (b.key.n_tokens,)),
            g.input(f"table.{group}", I32, (b.key.n_seqs, b.cache.n_entries)),
        )

    def picked(self, *values: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """(pos, seq, values) of the rows to output; values: f32 [n_tokens, ..]. As they are where
        all rows are output, or none."""
        if not self.key.picks:
            return self.pos, self.seq, list(values)
        g, n = self._g, self.key.n_out
        ids, pos, seq = (g.input(f"out.{t}", I32, (n,)) for t in ("ids", "pos", "seq"))
        return pos, seq, [g.get_rows(t, ids, name=f"{t.name}_out") for t in values]


def append_sampler(g: Graph, logits: Tensor, n_history: int) -> Tensor:
    """Record the sampler after logits; returns the chosen tokens, int32 [n]."""
    n = logits.shape[0]
    return g.sample(
        logits,
        g.input("sampler.settings", F32, (n, 8)),
        g.input("sampler.rng", I64, (n, 2)),
        g.input("sampler.history", I32, (n, n_history)),
        name="sample",
    )
