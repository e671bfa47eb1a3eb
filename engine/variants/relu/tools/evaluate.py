"""What skipping neurons costs: perplexity, KL divergence and missed neurons by threshold.

Every threshold is a run of the model of its own over the same windows, scored as `gguflow
perplexity` does, against the dense run of the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.evaluate import Score, evaluate
from gguflow.engine.graph import Graph, Tensor
from gguflow.engine.load import ModelSource
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.session import Session
from gguflow.engine.taps import Taps

from ..layers import gated, layer_input, relu
from ..run import sparse_run
from ..source import missing_predictor

WATCHED = "watched_reglu"  # a layer's neurons, all of them
WATCHED_BYTES = 256 << 20  # of scores and neurons that a run hands out at a time
# Shares of the neurons skipped that a sweep aims at.
SWEEP = (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.95)


@dataclass(frozen=True)
class Counts:
    """Neurons of one layer summed over tokens; all: tokens times neurons.

    computed: those at or above the threshold. fired: those that are not zero, whether computed or
    not. missed: those that fired and were skipped.
    """

    all: int
    computed: int
    fired: int
    missed: int

    @property
    def skipped_share(self) -> float:
        return 1 - self.computed / self.all

    @property
    def active_share(self) -> float:
        return self.fired / self.all

    @property
    def recall(self) -> float:
        return 1 - self.missed / self.fired if self.fired else 1.0

    @property
    def precision(self) -> float:
        return (self.fired - self.missed) / self.computed if self.computed else 1.0


def total(counts: Sequence[Counts]) -> Counts:
    """All layers together."""
    return Counts(*(sum(getattr(c, f) for c in counts) for f in Counts.__annotations__))


@dataclass(frozen=True)
class Result:
    """One way to run the model. threshold: None for the file's own, and for what has none.

    counts: by layer; empty for dense and exact runs.
    """

    name: str
    threshold: float | None
    score: Score
    counts: tuple[Counts, ...]


@dataclass(frozen=True)
class Watched:
    """A rewrite after SparseRun's, for layers that predict: every layer's scores and all of its
    neurons are put out before all else.

    The neurons are computed densely from the very input that the sparse layer had, so what it
    missed is known exactly. gated: whether there are gates. relu_up: whether up goes through a ReLU
    beside them. cuts: by layer, up to which value ReLU makes zero.
    """

    n_layer: int
    gated: bool
    relu_up: bool
    cuts: tuple[float, ...]
    path: str

    def rewrite(self, g: Graph) -> None:
        for i, cut in enumerate(self.cuts):
            h = layer_input(g, i)

            def product(part: str, i: int = i, h: Tensor = h) -> Tensor:
                return g.mul_mat(g.leaves[f"blk.{i}.ffn_{part}.weight"], h, name=f"watched_{part}")

            with g.scope(f"blk.{i}.ffn"):
                if self.gated:
                    gated(g, product("gate"), product("up"), self.relu_up, cut, "watched")
                    continue
                up, bias = product("up"), g.leaves.get(f"blk.{i}.ffn_up.bias")
                if bias is not None:
                    up = g.add(up, bias, name="watched_up_biased")
                relu(g, up, cut, WATCHED)
        layers, parts = range(self.n_layer), ("predict", WATCHED)
        names = tuple(f"blk.{i}.ffn.{p}" for p in parts for i in layers)
        Taps(names, self.path).rewrite(g)


class WatchedSession(Session):
    """Counts what every step's layers skipped, and hands out the step's other outputs.

    changes: fields of `Options` to run the model under.
    """

    def __init__(self, model: Model, **changes: Any) -> None:
        arch: Any = model.arch
        changed = model.with_options(**changes)
        watched = Watched(model.hp.n_layer, arch.gated, arch.relu_up, arch.cuts, model.source.path)
        super().__init__(changed.with_rewrite(watched))
        self._n_pieces = 1  # each has outputs
        run = sparse_run(changed.setup)
        assert run is not None
        self._thresholds = [np.float32(run.layer_threshold(i)) for i in range(model.hp.n_layer)]
        self._sums = np.zeros((model.hp.n_layer, 4), np.int64)

    def step(
        self, ids: Sequence[int], outputs: str = "none", sampler: Any = None, prompt: bool = False
    ) -> Any:
        out = super().step(ids, outputs, sampler, prompt)
        n_layer = len(self._thresholds)
        for i, threshold in enumerate(self._thresholds):
            skipped, fires = out[i] < threshold, out[n_layer + i] != 0
            n_skipped, missed = np.count_nonzero(skipped), np.count_nonzero(skipped & fires)
            n = skipped.size
            self._sums[i] += n, n - n_skipped, np.count_nonzero(fires), missed
        return out[2 * n_layer :]

    def scores(self, ids: Sequence[int]) -> np.ndarray:
        """A run's scores from all layers, float32 [n]; the cache is empty afterwards."""
        self.rewind(0)
        out = super().step(ids, "none")
        found = np.concatenate([out[i].ravel() for i in range(len(self._thresholds))])
        self.rewind(0)
        return found

    @property
    def counts(self) -> tuple[Counts, ...]:
        """So far, by layer."""
        return tuple(Counts(*map(int, row)) for row in self._sums)


def compare(
    source: ModelSource,
    options: Options,
    chunks: Sequence[Sequence[int]],
    thresholds: Sequence[float] = (),
    sweep: bool = False,
    each: Callable[[int, float], None] | None = None,
) -> list[Result]:
    """The dense run, the exact one and, where there are predictors, one at the file's threshold and
    at each of `thresholds`; with `sweep` at those that skip about SWEEP of the neurons too.

    options: n_ctx must hold a window; its predictor counts, its sparse mode and threshold do not.
    each: called after every window with their number and the dense perplexity so far.
    """
    hp = source.arch.hp
    n_ubatch = max(1, min(options.n_ubatch, WATCHED_BYTES // (8 * hp.n_layer * hp.n_ff)))
    options = replace(options, n_ubatch=n_ubatch, sparse_threshold=None)
    predicts = bool(options.predictor) or not missing_predictor(source)
    model = Model(source, replace(options, sparse="predict" if predicts else "exact"))
    model.load_weights()
    names: list[tuple[str, float | None]] = [("dense", None), ("exact", None)]
    sessions: list[Session] = [
        model.with_options(sparse=mode).new_session() for mode in ("off", "exact")
    ]
    if predicts:
        own = WatchedSession(model)
        wanted = sorted({*thresholds, *(_sweep(own, chunks[0]) if sweep else ())})
        names += [("file's", None), *((f"{t:g}", t) for t in wanted)]
        sessions += [own, *(WatchedSession(model, sparse_threshold=t) for t in wanted)]
    scores = evaluate(sessions, chunks, each)
    return [
        Result(name, t, score, s.counts if isinstance(s, WatchedSession) else ())
        for (name, t), score, s in zip(names, scores, sessions, strict=True)
    ]


def _sweep(session: WatchedSession, chunk: Sequence[int]) -> list[float]:
    """Thresholds with two digits that skip about SWEEP of the neurons."""
    scores = session.scores(chunk[: session.model.options.n_ubatch])
    return [float(f"{t:.2g}") for t in np.quantile(scores, SWEEP)]
