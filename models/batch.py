"""What a graph is built for: the rows of a run, and where their keys and values live."""

from __future__ import annotations

from collections.abc import Mapping

from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import F32, I32, I64, DType, Graph, Tensor
from gguflow.engine.plan_key import PAGE, STATES, PlanKey


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
class StateLayer:
    """What a recurrent layer keeps of every sequence: float32 values by the name of the state."""

    sizes: Mapping[str, int]

    @property
    def group(self) -> str:
        return STATES


@dataclass(frozen=True)
class CacheSize:
    """Pages of the KV cache by group, slots being those of recurrent layers, and entries of a
    sequence's page tables."""

    n_pages: Mapping[str, int]
    n_entries: int


@dataclass(frozen=True)
class LayerKv:
    """A layer's states, the rows that the run's tokens write, and the page tables to read by. v:
    None where values are part of what k holds."""

    k: Tensor
    v: Tensor | None
    rows: Tensor
    table: Tensor


@dataclass(frozen=True)
class Batch:
    """The rows of a run and the cache they live in. k_type, v_type: the cache's element types.
    picks_last: whether the rows to output are picked behind the last layer. Within it they get
    other kernels than the same rows in a run where all are output, and other bits."""

    key: PlanKey
    cache: CacheSize
    k_type: DType
    v_type: DType
    picks_last: bool = False

    def inputs(self, g: Graph, causal: bool = True) -> Inputs:
        """Declare the inputs that every decoder has. causal: see `HParams`."""
        return Inputs(g, self, causal)


@dataclass(frozen=True)
class Rows:
    """Where rows stand. pos, seq: i32 [n], -1 where padded; the first n_single rows are each alone
    in their sequence. sees: i32 [n], the last position that a row sees; pos itself where that is
    its own."""

    pos: Tensor
    seq: Tensor
    n_single: int
    sees: Tensor


class Inputs:
    """A run's inputs: token ids, i32 [n_tokens], -1 where padded, and where its rows stand."""

    def __init__(self, g: Graph, batch: Batch, causal: bool) -> None:
        n = batch.key.n_tokens
        self._g, self._batch = g, batch
        self.key = batch.key
        self.tokens, pos, seq = (g.input(t, I32, (n,)) for t in ("tokens", "pos", "seq"))
        # Generated tokens see what stands before them in any model.
        self._looks_ahead = not causal and batch.key.n_single < n
        sees = g.input("sees", I32, (n,)) if self._looks_ahead else pos
        self.rows = Rows(pos, seq, batch.key.n_single, sees)
        self._picked: dict[Tensor, Tensor] = {}

    @property
    def picks_last(self) -> bool:
        """See `Batch`."""
        return self._batch.picks_last

    def kv(self, i: int, layer: CacheLayer) -> LayerKv:
        """States and indices of layer i."""
        g, b, group = self._g, self._batch, layer.group
        n_rows = b.cache.n_pages[group] * PAGE
        return LayerKv(
            g.state(f"kv.{i}.k", b.k_type, (n_rows, layer.n_k)),
            g.state(f"kv.{i}.v", b.v_type, (n_rows, layer.n_v)) if layer.n_v else None,
            g.input(f"rows.{group}", I32, (b.key.n_tokens,)),
            g.input(f"table.{group}", I32, (b.key.n_seqs, b.cache.n_entries)),
        )

    def states(self, i: int, layer: StateLayer) -> tuple[dict[str, Tensor], Tensor]:
        """States of layer i by name, f32 [n_slots, n], and the slot of every token's sequence."""
        g, n_slots = self._g, self._batch.cache.n_pages[STATES]
        found = {
            name: g.state(f"ssm.{i}.{name}", F32, (n_slots, n)) for name, n in layer.sizes.items()
        }
        return found, g.input(f"rows.{STATES}", I32, (self._batch.key.n_tokens,))

    @property
    def out_rows(self) -> Rows:
        """The rows to output: all where all are output, or none."""
        key, g = self.key, self._g
        if not key.picks:
            return self.rows
        pos, seq = (g.input(f"out.{t}", I32, (key.n_out,)) for t in ("pos", "seq"))
        sees = g.input("out.sees", I32, (key.n_out,)) if self._looks_ahead else pos
        return Rows(pos, seq, key.n_out if key.n_out <= key.n_seqs else 0, sees)

    def out(self, x: Tensor) -> Tensor:
        """The rows to output of x, f32 [n_tokens, ..]; x itself if it has no others."""
        if not self.key.picks or x.shape[0] == self.key.n_out:
            return x
        if x not in self._picked:
            ids = self._g.input("out.ids", I32, (self.key.n_out,))
            self._picked[x] = self._g.get_rows(x, ids, name=f"{x.name.split('.')[-1]}_out")
        return self._picked[x]


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
