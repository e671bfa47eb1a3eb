"""Reading values inside a model: some of its graph's nodes become outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import Graph
from gguflow.models.base import ModelError

if TYPE_CHECKING:
    from gguflow.engine.model import Model


@dataclass(frozen=True)
class Taps:
    """A rewrite that puts nodes before all other outputs, those of earlier taps included.

    names: of the nodes. path: the model's, for the error when a graph lacks one.
    """

    names: tuple[str, ...]
    path: str

    def rewrite(self, g: Graph) -> None:
        """Raises ModelError for a name that the graph lacks."""
        nodes = {n.name: n for n in g.nodes}
        for name in self.names:
            if name not in nodes:
                raise ModelError(f"{self.path}: the graph has no {name}")
        g.outputs[:0] = [nodes[name] for name in self.names]


def tapped(
    model: Model, names: Sequence[str], chunks: Sequence[Sequence[int]], **changes: Any
) -> Iterator[list[np.ndarray]]:
    """Runs sequences of token ids; yields the values of the nodes `names`, n_ubatch tokens at a
    time: [n_tokens, ...] each, overwritten by the next run.

    changes: fields of `Options` to run the model under.
    """
    taps = Taps(tuple(names), model.source.path)
    run = model.with_options(**changes).with_rewrite(taps)
    for chunk in chunks:
        for out in run.outputs(chunk):
            yield [out[k] for k in range(len(names))]
