"""One op by its reference, in float64, on operands of any size: a part of the columns at a time,
and of tables and experts only what is looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from gguflow.engine.backends.base import Backend
from gguflow.engine.backends.host import Buffers, HostBuffer, read
from gguflow.engine.compile.batch_rows import fewer_rows
from gguflow.engine.dataclass import dataclass, field, replace
from gguflow.engine.graph import I32, Role, Tensor, op_spec

PART_BYTES = 64 << 20  # of matrices' values as float32 at a time; the reference takes twice more


@dataclass
class HostMemory:
    """The `Memory` that the oracle runs on: bytes by owner."""

    held: Buffers
    rows: Mapping[Tensor, str] = field(default_factory=dict)

    def locate(self, owner: Tensor) -> tuple[HostBuffer, int]:
        return HostBuffer(self.held[owner]), 0

    def is_packed(self, owner: Tensor) -> bool:
        return False


@dataclass(frozen=True)
class Expected:
    """What an op makes of its operands. value: of its result, None where it only writes into a
    state. states: their values afterwards, by owner."""

    value: np.ndarray | None
    states: Mapping[Tensor, np.ndarray]


class Oracle:
    """The references. backend: the one that runs them, on memory of the host."""

    def __init__(self, backend: Backend, part_bytes: int = PART_BYTES) -> None:
        self._backend = backend
        self._part_bytes = part_bytes

    def run(
        self, node: Tensor, held: Buffers, rows: Mapping[Tensor, str],
        live: Mapping[str, int] | None = None,
    ) -> Expected:  # fmt: skip
        """The reference's result. held: the bytes of its sources' owners, which stay as they are.
        live: rows that count, of those that `rows` names; the result has no others."""
        if live is not None:
            node = fewer_rows(node, rows, live)
        ids = op_spec(node.op or "").looks_up
        if ids is not None:
            node, held = _looked_up(node, held, ids)
        n = self._columns(node)
        if node.shape and n < node.shape[-1]:
            parts = [self._whole(part, held).value for part in _parts(node, n)]
            return Expected(np.concatenate([p for p in parts if p is not None], axis=-1), {})
        return self._whole(node, held)

    def _whole(self, node: Tensor, held: Buffers) -> Expected:
        states = states_written(node)
        mine = {s.owner: held[s.owner] for s in node.live_srcs()}
        mine |= {s: held[s].copy() for s in states}
        mine.setdefault(node.owner, np.zeros(node.owner.nbytes, np.uint8))
        self._backend.lower([node], HostMemory(mine)).run()
        value = None if node.owner in states else read(node, mine)
        return Expected(value, {s: read(s, mine) for s in states})

    def _columns(self, node: Tensor) -> int:
        """Columns of the result that are computed at a time."""
        spec, n = op_spec(node.op or ""), node.shape[-1] if node.shape else 0
        if not spec.by_column or not n:
            return n
        matrices = [s for i in spec.weights if i < len(node.srcs) and (s := node.srcs[i])]
        a_column = sum(4 * s.size // n for s in matrices)
        return max(1, min(n, self._part_bytes // max(a_column, 1)))


def states_written(node: Tensor) -> list[Tensor]:
    """The owners of the sources that an op updates."""
    spec = op_spec(node.op or "")
    at = [*([] if spec.writes_into is None else [spec.writes_into]), *spec.also_writes]
    return [s.owner for i in at if (s := node.srcs[i])]


def _parts(node: Tensor, n: int) -> Iterator[Tensor]:
    """The node as nodes of n columns each."""
    spec = op_spec(node.op or "")
    for start in range(0, node.shape[-1], n):
        stop = min(start + n, node.shape[-1])
        srcs = list(node.srcs)
        for i in spec.by_column:
            s = srcs[i] if i < len(srcs) else None
            if s is not None:
                srcs[i] = _slice(s, len(s.shape) - (2 if i in spec.weights else 1), start, stop)
        shape = (*node.shape[:-1], stop - start)
        yield Tensor(node.name, node.dtype, shape, Role.NODE, op=node.op, params=node.params,
                     srcs=tuple(srcs))  # fmt: skip


def _slice(t: Tensor, axis: int, start: int, stop: int) -> Tensor:
    shape = list(t.shape)
    shape[axis] = stop - start
    return replace(t, shape=tuple(shape), role=Role.VIEW, op=None, view_of=t.owner,
                   view_offset=t.view_offset + start * t.strides[axis])  # fmt: skip


def _looked_up(node: Tensor, held: Buffers, ids: int) -> tuple[Tensor, Buffers]:
    """The node over a table of those entries alone that its ids name, which are counted anew. What
    follows the ids, biases, has an entry for each of the table's."""
    table, index = node.srcs[0], node.srcs[ids]
    assert table is not None and index is not None
    given = read(index, held).astype(np.int64)
    known = (given >= 0) & (given < table.shape[0])
    used = np.unique(given[known])
    if table.owner is not table or len(used) in (0, table.shape[0]):
        return node, held
    fewer = dict(held)

    def entries(t: Tensor) -> Tensor:
        new = Tensor(t.name, t.dtype, (len(used), *t.shape[1:]), Role.WEIGHT, t.strides)
        raw = np.ndarray(t.shape[:1] + t.strides[:1], np.uint8, held[t.owner], t.view_offset)
        fewer[new] = raw[used].reshape(-1)
        return new

    new_ids = np.where(known, np.searchsorted(used, np.where(known, given, used[0])), -1)
    place = Tensor(index.name, I32, index.shape, Role.INPUT)
    fewer[place] = new_ids.astype(np.int32).reshape(-1).view(np.uint8)
    srcs = list(node.srcs)
    srcs[0], srcs[ids] = entries(table), place
    for i in range(ids + 1, len(srcs)):
        if (s := srcs[i]) is not None:
            if not s.is_contiguous:
                return node, held
            srcs[i] = entries(s)
    return replace(node, srcs=tuple(srcs)), fewer
