"""Reading values inside a model: some of its graph's nodes become outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gguflow.engine.graph import Graph, Tensor
from gguflow.engine.model import Model
from gguflow.engine.plan_key import PlanKey
from gguflow.models.base import ModelError


class TappedModel(Model):
    """A loaded model's weights, run with the nodes named in `taps` as outputs before all others.

    changes: fields of `Options`. Raises ModelError for a name that the graph lacks.
    """

    def __init__(self, model: Model, taps: Sequence[str], **changes: Any) -> None:
        self.__dict__.update(model.with_options(**changes).__dict__)
        self.taps = tuple(taps)

    def graph(self, key: PlanKey) -> Graph:
        g = super().graph(key)
        nodes = {n.name: n for n in g.nodes}
        self.extend(g, nodes)
        for name in self.taps:
            if name not in nodes:
                raise ModelError(f"{self.source.path}: the graph has no {name}")
        g.outputs[:0] = [nodes[name] for name in self.taps]
        return g

    def extend(self, g: Graph, nodes: dict[str, Tensor]) -> None:
        """Add nodes to the graph, and to `nodes`, for subclasses."""

    def tapped(self, chunks: Sequence[Sequence[int]]) -> Iterator[list[np.ndarray]]:
        """Runs sequences of token ids; yields the taps' values, n_ubatch tokens at a time.

        The arrays, [n_tokens, ...] in the order of `taps`, are overwritten by the next run.
        """
        n_ubatch = self.options.n_ubatch
        for chunk in chunks:
            self.check_ids(chunk)
            self.session.rewind(0)
            for i in range(0, len(chunk), n_ubatch):
                out = self.session.step(chunk[i : i + n_ubatch], "none")
                yield [out[k] for k in range(len(self.taps))]
