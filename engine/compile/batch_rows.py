"""Rows of the batch: which values have one row a token, or one an output, along axis 0.

A plan is made for a bucket of rows, and the batch may have fewer. Where a value's rows follow the
batch's, those behind the batch's need not be computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Graph, Role, Tensor, exchanged_by_rank, op_spec

TOKENS, OUTPUTS = "tokens", "outputs"
_SEEDS = {TOKENS: "tokens", OUTPUTS: "out.ids"}  # inputs whose lengths are the numbers of rows
_OF_TOKENS = (
    "pos",
    "sees",
    "seq",
    "rows.",
    "lora.",
)  # beside the seeds: an input, or all that begin with it
_OF_OUTPUTS = ("out.", "sampler.")  # of the tokens, when there is one output a token


def batch_rows(graph: Graph) -> dict[Tensor, str]:
    """The name of axis 0, `tokens` or `outputs`, of every leaf, node and view that follows the
    batch. Others are computed in full; their values do not depend on rows that are left out, but
    for ops that mix rows."""
    lengths = {
        name: graph.leaves[seed].shape[0] for name, seed in _SEEDS.items() if seed in graph.leaves
    }
    found: dict[Tensor, str] = {}
    if TOKENS not in lengths or any(_shares_rows(n) for n in graph.nodes):
        return found
    for leaf in graph.leaves.values():
        name = _name_of_input(leaf, OUTPUTS in lengths)
        if name is not None and leaf.shape[:1] == (lengths[name],):
            found[leaf] = name
    for node in graph.nodes:
        for s in node.live_srcs():
            _see(s, found)
        name = _name_of_node(node, found)
        if name is not None and node.shape[:1] == (lengths[name],):
            found[node] = name
    for t in graph.outputs:
        _see(t, found)
    return found


def _shares_rows(node: Tensor) -> bool:
    """Whether devices have a share of its rows each: which ones follows from how many it has."""
    return any(len(made) > 1 for made in exchanged_by_rank(node))


def most_rows(graph: Graph, names: Iterable[str]) -> dict[str, int]:
    """How many rows the plan is made for, by name."""
    return {name: graph.leaves[_SEEDS[name]].shape[0] for name in set(names)}


def row_operands(node: Tensor, found: Mapping[Tensor, str]) -> list[int | None]:
    """Which operands of a node have fewer rows when the batch has: None for the result, then
    indices of sources. None at all for a node that is computed in full."""
    if node not in found:
        return []
    spec = op_spec(node.op or "")
    whole = {*spec.weights, *spec.across}
    srcs: list[int | None] = []
    for i, s in enumerate(node.srcs):
        if s is None or i in whole:
            continue
        like = s.role is Role.INPUT or len(s.shape) == len(node.shape)
        if i == spec.rows_of or (found.get(s) == found[node] and like):
            srcs.append(i)
    return [None, *srcs]


def fewer_rows(node: Tensor, rows: Mapping[Tensor, str], live: Mapping[str, int]) -> Tensor:
    """The node over the first rows alone, in the same memory."""
    operands: list[Tensor | None] = [node, *node.srcs]
    followed = row_operands(node, rows)
    if not followed:
        return node
    for k in followed:
        at = 0 if k is None else k + 1
        t = operands[at]
        assert t is not None
        n = min(live.get(rows[t], t.shape[0]), t.shape[0])
        operands[at] = replace(t, shape=(n, *t.shape[1:]), view_of=t.owner)
    out, *srcs = operands
    assert out is not None
    return replace(out, srcs=tuple(srcs))


def _name_of_input(leaf: Tensor, has_outputs: bool) -> str | None:
    if leaf.role is not Role.INPUT:
        return None
    if leaf.name == _SEEDS[TOKENS] or any(_begins(leaf.name, p) for p in _OF_TOKENS):
        return TOKENS
    if any(_begins(leaf.name, p) for p in _OF_OUTPUTS):
        return OUTPUTS if has_outputs else TOKENS
    return None


def _begins(name: str, part: str) -> bool:
    return name.startswith(part) if part.endswith(".") else name == part


def _see(t: Tensor, found: dict[Tensor, str]) -> None:
    """A view has its source's rows when it keeps their number, distance and order."""
    if t.role is not Role.VIEW or t in found:
        return
    (s,) = t.live_srcs()
    _see(s, found)
    if s not in found or not t.shape or t.shape[0] != s.shape[0]:
        return
    inside = t.view_offset - s.view_offset < s.strides[0]
    if t.shape[0] == 1 or (t.strides[0] == s.strides[0] and inside):
        found[t] = found[s]


def _name_of_node(node: Tensor, found: Mapping[Tensor, str]) -> str | None:
    spec = op_spec(node.op or "")
    if spec.rows_of is None or spec.writes_into is not None:
        return None
    source = node.srcs[spec.rows_of]
    if source is None or source not in found or max(len(source.shape), len(node.shape)) < 2:
        return None  # of one axis alone, which may be the one that the op works along
    name, n = found[source], source.shape[0]
    for i, s in enumerate(node.srcs):
        if s is None or i == spec.rows_of or i in spec.across:
            continue
        if i in spec.weights:
            if len(s.shape) > 2:
                return None  # a matrix for each of some axes of the source
        elif (
            s.owner.role in (Role.NODE, Role.INPUT)
            and s.shape[:1] == (n,)
            and found.get(s) != name
            and n > 1
        ):
            return None  # as many rows, which are something else
    return name


class RowsError(ValueError):
    """Rows to compute that a plan does not have: names them."""


def check_live(live: Mapping[str, int], most: Mapping[str, int]) -> None:
    """Raises RowsError for a number of rows outside the plan's. Names it lacks are nobody's."""
    for name, n in live.items():
        if name in most and not 1 <= n <= most[name]:
            raise RowsError(f"{name}: {n} rows of a plan made for 1 to {most[name]}")
