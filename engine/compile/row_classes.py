"""Classes of rows: which rows of a node belong to generated tokens and which to prompts.

On some devices a row's bits depend on its class, see docs/equal-bits.md. The rows to output, where
a graph picks them, are single ones whatever they were: there are few of them, in any order.
"""

from __future__ import annotations

from gguflow.engine.graph import Graph

from .batch_rows import TOKENS, batch_rows


def mark_classes(graph: Graph) -> None:
    """Set `Tensor.n_single` of every node whose rows follow the batch's."""
    if graph.n_single is None:
        return
    rows = batch_rows(graph)
    for node in graph.nodes:
        name = rows.get(node)
        if name is not None:
            node.n_single = graph.n_single if name == TOKENS else node.shape[0]
