"""Every op run through its reference, on the bytes that a kernel would see.

Memory is as on every backend: an owner tensor (a leaf, or a node that is no view) has a flat array
of bytes, and every tensor is a strided window on its owner's. An op's operands are decoded from it,
and its result is encoded into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gguflow.engine.backends.host import Buffers, read, write
from gguflow.engine.graph import Graph, Role, Tensor, op_spec
from gguflow.engine.quants import encode


def run_node(node: Tensor, buffers: Buffers) -> None:
    """Compute one op node: decode its operands, run the reference, encode the result."""
    assert node.op is not None, f"{node.name} is no op"
    spec = op_spec(node.op)
    values = [None if s is None else read(s, buffers) for s in node.srcs]
    rows = None if spec.writes_into is None else spec.written(*values, **node.params)
    also = spec.written_also(*values, **node.params) if spec.also_writes else []
    write(node, buffers, spec.reference(*values, **node.params), rows)
    for i, (after, changed) in zip(spec.also_writes, also, strict=True):
        state = node.srcs[i]
        assert state is not None
        write(state, buffers, after, changed)


def _bind(leaf: Tensor, feed: np.ndarray | None) -> np.ndarray:
    """The bytes of a leaf: the feed's own when it is in storage form, else an encoded copy."""
    if feed is None:
        if leaf.role is Role.STATE:
            return np.zeros(leaf.nbytes, np.uint8)
        raise KeyError(f"no value for {leaf.role.value} {leaf.name}")
    feed = np.asarray(feed)
    if feed.dtype in (leaf.dtype.storage, np.uint8) and feed.nbytes == leaf.nbytes:
        if not feed.flags.c_contiguous:
            raise ValueError(f"{leaf.name}: a value in storage form must be contiguous")
        return feed.reshape(-1).view(np.uint8)
    if leaf.role is Role.STATE:
        raise ValueError(
            f"{leaf.name}: a state is updated in place, so its value must be in storage form: "
            f"{leaf.nbytes} bytes of {leaf.dtype.storage}, got {feed.nbytes} of {feed.dtype}"
        )
    if feed.shape != leaf.shape:
        raise ValueError(f"{leaf.name}: value of shape {feed.shape} for {list(leaf.shape)}")
    return encode(leaf.dtype, feed).reshape(-1).view(np.uint8)


def evaluate(
    graph: Graph,
    feeds: Mapping[str, np.ndarray],
    outputs: Sequence[Tensor | str] | None = None,
) -> dict[str, np.ndarray]:
    """Run a whole graph by reference.

    feeds: leaf name -> values of the leaf's shape (encoded to its type), or its storage form: an
        array of the type's `storage`, uint8 for quantized types, which is then used in place. A
        state must come in storage form, for it is updated; left out, it starts as zeros.
    outputs: tensors or names of nodes and leaves; by default the graph's outputs, or all nodes
        when it has marked none.
    Returns name -> values, float32 or integers. Raises KeyError for an unknown name or a leaf
    without a value, ValueError for a value that does not fit.
    """
    if unknown := set(feeds) - set(graph.leaves):
        raise KeyError(f"no leaf called {', '.join(sorted(unknown))}")
    buffers = {t: _bind(t, feeds.get(name)) for name, t in graph.leaves.items()}
    for node in graph.nodes:
        if node.view_of is None:
            buffers[node] = np.zeros(node.nbytes, np.uint8)
        run_node(node, buffers)
    by_name = {**graph.leaves, **{n.name: n for n in graph.nodes}}
    wanted = outputs if outputs is not None else graph.outputs or graph.nodes
    tensors = [by_name[t] if isinstance(t, str) else t for t in wanted]
    return {t.name: read(t, buffers) for t in tensors}
