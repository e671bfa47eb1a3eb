"""Times one op at a time on cold caches, and holds it against the machine's measured roofs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

import gguflow.engine.ops  # noqa: F401  (registers the ops)
from gguflow.engine.backends.base import Backend, Buffer, Program
from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import F32, DType, Graph, Operand, Role, Tensor, dtype_by_name, op_spec
from gguflow.engine.profile.peaks import Peaks
from gguflow.engine.profile.rates import Rates
from gguflow.models.shapes import random_rows

from .cases import KernelCase

FLUSH_BYTES = 256 << 20  # read before each go: past the largest cache
PIECE_BYTES = 16 << 20  # written at a time into an operand
BUDGET_US = 2e5  # of goes a case
LEAST, MOST = 3, 20  # goes


@dataclass(frozen=True)
class KernelTime(Rates):
    """One case measured. Rates count every operand read and the result written once.

    us: median of the goes. roof_us: what the peaks allow, and bound: by which of them, `memory` or
    `compute`; None and "" for a backend without peaks. rival: who else did the same operation, in
    rival_us.
    """

    name: str
    op: str
    kernel: str
    us: float
    bytes: int
    flops: int
    roof_us: float | None = None
    bound: str = ""
    rival: str = ""
    rival_us: float | None = None

    @property
    def of_roof(self) -> float | None:
        """Share of what the peaks allow."""
        return self.roof_us / self.us if self.roof_us and self.us else None

    @property
    def speedup(self) -> float | None:
        """The rival's time over ours."""
        return self.rival_us / self.us if self.rival_us and self.us else None


class Places:
    """Every tensor in a buffer of its own: the `Memory` a backend compiles against."""

    def __init__(self) -> None:
        self.at: dict[Tensor, Buffer] = {}
        self.packed: set[Tensor] = set()
        self.rows: dict[Tensor, str] = {}  # all are computed

    def locate(self, owner: Tensor) -> tuple[Buffer, int]:
        return self.at[owner], 0

    def is_packed(self, owner: Tensor) -> bool:
        return owner in self.packed


class KernelTimer:
    """Times cases on one backend."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        roofs = backend.peaks()
        self.peaks = Peaks(*roofs) if roofs else Peaks()
        x = Graph().input("x", F32, (FLUSH_BYTES >> 15, 1 << 13))
        self._flush, _ = self._compile(Graph().op("sum", x, axis=-1), [])

    def supports(self, case: KernelCase) -> bool:
        return self.backend.supports(declare(case))

    def prepare(self, cases: Sequence[KernelCase]) -> None:
        """Compile every kernel the cases will need, where the backend can do so at once."""
        if self.backend.clock is not None:
            self.backend.clock.prepare([declare(c) for c in cases])

    def measure(self, case: KernelCase) -> KernelTime:
        """Raises MemoryError with the figures when the operands do not fit."""
        node = declare(case)
        work, places = self._compile(node, case.srcs)
        times = self._goes(work)
        nbytes, flops = op_spec(case.op).cost_at(node, case.n_past)
        types = [t.dtype.name for t in (node, *node.live_srcs())]
        roof, bound = roofline(self.peaks, nbytes, flops, types)
        rival, rival_us = self._rival(node, places)
        return KernelTime(
            case.name, case.op, work.kernels[0], float(np.median(times)), nbytes, flops, roof,
            bound, rival, rival_us,
        )  # fmt: skip

    def _compile(self, node: Tensor, operands: Sequence[Operand | None]) -> tuple[Program, Places]:
        places = Places()
        data = {s.owner: o.data for s, o in zip(node.srcs, operands, strict=False) if s and o}
        for owner in dict.fromkeys(s.owner for s in node.live_srcs()):
            self._place(owner, node, data.get(owner), places)
        if node.owner is node:
            places.at[node] = self.backend.alloc(node.nbytes)
        return self.backend.lower([node], places), places

    def _place(self, t: Tensor, node: Tensor, data: Any, places: Places) -> None:
        backend = self.backend
        if t.role is Role.WEIGHT and backend.packed_bytes(t, [node]):
            block = random_block(t.dtype, t.shape[-1], len(t.shape))
            places.at[t] = backend.load_weight(t, np.resize(block, t.nbytes), True)
            places.packed.add(t)
            return
        buffer = places.at[t] = backend.alloc(t.nbytes)
        if data is not None:
            buffer.write(0, np.asarray(data, t.dtype.storage))
            return
        block = random_block(t.dtype, t.shape[-1], len(t.shape)).reshape(-1)
        piece = np.resize(block, max(PIECE_BYTES // block.nbytes, 1) * block.nbytes)
        for at in range(0, t.nbytes, piece.nbytes):
            buffer.write(at, piece[: t.nbytes - at])

    def _goes(self, work: Program) -> list[float]:
        """Microseconds of cold goes, as many as the time of the first one allows."""
        self._flush.run()
        work.run()
        first = self._times(work, 1)[0]
        return self._times(work, int(min(max(BUDGET_US / max(first, 1), LEAST), MOST)))

    def _times(self, work: Program, goes: int) -> list[float]:
        if self.backend.clock is not None:
            return self.backend.clock.cold(work, self._flush, goes)
        times = []
        for _ in range(goes):
            self._flush.run()
            begin, end = work.run_timed().ns
            times.append(float(end - begin) / 1e3)
        return times

    def _rival(self, node: Tensor, places: Places) -> tuple[str, float | None]:
        clock, find = self.backend.clock, self.backend.rival
        found = find(node, places) if find is not None and clock is not None else None
        if found is None or clock is None:
            return "", None
        name, work = found
        work()
        return name, float(np.median(clock.cold(work, self._flush, MOST)))


def roofline(
    peaks: Peaks, nbytes: int, flops: int, types: Sequence[str]
) -> tuple[float | None, str]:
    """(microseconds the peaks allow, which of them sets them). types: the result's first."""
    compute = peaks.compute(types)
    times = {
        "memory": nbytes / peaks.read_gbs / 1e3 if peaks.read_gbs else 0.0,
        "compute": flops / compute / 1e3 if compute else 0.0,
    }
    bound = max(times, key=lambda name: times[name])
    return (times[bound], bound) if times[bound] else (None, "")


def declare(case: KernelCase) -> Tensor:
    """The case's node, on leaves that views make what the op sees."""
    graph = Graph()
    srcs = [None if o is None else _leaf(graph, f"src{i}", o) for i, o in enumerate(case.srcs)]
    return graph.op(case.op, *srcs, **case.params)


def _leaf(graph: Graph, name: str, operand: Operand) -> Tensor:
    make = {"weight": graph.weight, "input": graph.input, "state": graph.state}[operand.role]
    axes = operand.permute or tuple(range(len(operand.shape)))
    dense = tuple(operand.shape[axes.index(a)] for a in range(len(axes)))
    leaf = make(name, dtype_by_name(operand.dtype), dense)
    return graph.permute(leaf, axes) if operand.permute else leaf


@lru_cache(maxsize=8)
def random_block(dtype: DType, n: int, n_dims: int) -> np.ndarray:
    """Rows of random values to repeat, uint8 [rows, bytes of a row]; vectors are ones."""
    return random_rows("kernel", (n,) if n_dims == 1 else (64, n), dtype)
