"""Turns the cases of an OpSpec into graphs, and runs them on any backend against the oracle.

    @pytest.mark.parametrize("spec, index", all_cases())
    def test_kernel(spec, index):
        built = build(spec, index)
        if not backend.supports(built.node):
            pytest.skip("no kernel")
        assert nmse(run_on(backend, built, n_threads=2), built.expected) <= built.tolerance

`run_on` surrounds every buffer with guard bytes, fills the result's memory with rubbish, and raises
AssertionError when a kernel writes where it must not.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

import gguflow.engine.ops  # noqa: F401  (registers the ops)
from gguflow.engine.backends.base import Backend, Buffer
from gguflow.engine.backends.cpu.native import runnable_isas
from gguflow.engine.backends.numpy import evaluate, read, window
from gguflow.engine.graph import (
    Case,
    DType,
    Graph,
    Operand,
    OpSpec,
    Shape,
    Tensor,
    all_ops,
    dtype_by_name,
    op_spec,
)
from gguflow.engine.quants import codec, encode

GUARD = 256  # bytes before and after each buffer; a multiple of every alignment kernels rely on
RUBBISH = 0xA5
MANY = 1 << 12  # elements
KEPT_BYTES = 64 << 20  # of quantized arrays


def isas() -> list[Any]:
    """The instruction sets of this machine, as parameters. avx512bf16 has the kernels of avx512 but
    for BF16."""
    found = runnable_isas()
    slow = {"avx512"} if "avx512bf16" in found else set()
    return [pytest.param(isa, marks=pytest.mark.slow) if isa in slow else isa for isa in found]


@dataclass
class Built:
    """A case as a graph of one op.

    node: the op. feeds: leaf name -> its bytes. expected: the oracle's result, decoded.
    after: leaf name -> the bytes of the leaf after the oracle ran.
    """

    graph: Graph
    node: Tensor
    feeds: dict[str, np.ndarray]
    expected: np.ndarray
    after: dict[str, np.ndarray]
    tolerance: float


def all_cases() -> list[Any]:
    """(spec, index) of every case of every op, as pytest parameters with readable ids."""
    return [
        pytest.param(spec, i, id=f"{spec.name}-{i}-{case.note.replace(' ', '_')}")
        for spec in all_ops()
        for i, case in enumerate(cases_of(spec))
    ]


def every(n: int, cases: list[Any]) -> list[Any]:
    """The cases, of which all but every n-th of an op are slow."""
    slow = pytest.mark.slow
    return [
        pytest.param(*p.values, id=p.id, marks=(*p.marks, slow) if p.values[-1] % n else p.marks)
        for p in cases
    ]


@cache
def cases_of(spec: OpSpec) -> tuple[Case, ...]:
    """Made once: an op has hundreds."""
    return tuple(spec.cases())


def reference(op: str, *srcs: Any, **params: Any) -> np.ndarray:
    """The reference of `op` on float32 or integer arrays (or nested lists of floats)."""
    spec = op_spec(op)
    arrays = [
        s if s is None or isinstance(s, np.ndarray) else np.asarray(s, np.float32) for s in srcs
    ]
    return spec.reference(*arrays, **spec.bind_params(params))


def build(spec: OpSpec, index: int) -> Built:
    """Case `index` of `spec`, with random data that depends on nothing else."""
    case = cases_of(spec)[index]
    return build_case(spec, case, np.random.default_rng([zlib.crc32(spec.name.encode()), index]))


@cache
def built_once(spec: OpSpec, index: int) -> Built:
    """`build` for tests that change nothing of it: drawing and quantizing weights and asking the
    oracle takes longer than what is tested."""
    return build(spec, index)


def build_case(
    spec: OpSpec, case: Case, rng: np.random.Generator, *, oracle: bool = True
) -> Built:  # fmt: skip
    """`case` as a graph, with permuted and padded operands as views of larger leaves.

    oracle: ask it; not where runs are only held to each other, of an op that writes its result and
    nothing else.
    """
    graph = Graph()
    feeds: dict[str, np.ndarray] = {}
    srcs: list[Tensor | None] = []
    for i, operand in enumerate(case.srcs):
        srcs.append(None if operand is None else _operand(graph, feeds, f"src{i}", operand, rng))
    node = graph.op(spec.name, *srcs, **case.params)
    after = {name: raw.copy() for name, raw in feeds.items()} if oracle else feeds
    expected = evaluate(graph, after, [node])[node.name] if oracle else np.zeros(node.shape)
    tolerance = spec.tolerance if case.tolerance is None else case.tolerance
    return Built(graph, node, feeds, expected, after, tolerance)


def _operand(
    graph: Graph,
    feeds: dict[str, np.ndarray],
    name: str,
    operand: Operand,
    rng: np.random.Generator,
) -> Tensor:
    """Declare the leaf behind an operand, draw its data, and return the view the op sees."""
    dtype = dtype_by_name(operand.dtype)
    t, full, inner = _declare(graph, name, operand)
    data = _surroundings(dtype, full, rng)
    axes = operand.permute or tuple(range(len(operand.shape)))
    data[inner].transpose(axes)[...] = _values(operand, dtype, rng)
    if dtype.is_quantized and not codec(dtype).writable:
        assert operand.data is None or callable(operand.data), f"{name}: {dtype.name} holds no data"
        feeds[name] = random_blocks(dtype, dtype.array_bytes(full) // dtype.nbytes, rng).reshape(-1)
    else:
        feeds[name] = encoded(dtype, data)
    return t


_KEPT: dict[tuple[object, ...], bytes] = {}  # of arrays that were quantized lately


def encoded(dtype: DType, data: np.ndarray) -> np.ndarray:
    """The bytes; quantizing a large array takes longer than finding it done: every instruction
    set's tests have the same."""
    if not dtype.is_quantized or data.size <= MANY:
        return np.ascontiguousarray(encode(dtype, data)).reshape(-1).view(np.uint8)
    floats = np.ascontiguousarray(data, np.float32)
    key = dtype, data.shape, blake2b(floats).digest()
    if key not in _KEPT:
        if sum(map(len, _KEPT.values())) > KEPT_BYTES:
            _KEPT.clear()
        _KEPT[key] = encode(dtype, floats).tobytes()
    return np.frombuffer(bytearray(_KEPT[key]), np.uint8)


def random_blocks(dtype: DType, n: int, rng: np.random.Generator) -> np.ndarray:
    """Blocks of a type that is only read: any bytes, with a scale that is a small number."""
    raw = rng.integers(0, 256, (n, dtype.nbytes), dtype=np.uint8)
    d = rng.uniform(0.001, 0.01, n).astype(np.float16).view(np.uint16)
    if dtype.name == "iq1_m":  # four bits at the top of each of the last four words
        raw[:, 49::2] = raw[:, 49::2] & 15 | (d[:, None] >> np.array([0, 4, 8, 12]) & 15) << 4
    else:
        raw[:, :2] = d[:, None].view(np.uint8)
    return raw


def _declare(graph: Graph, name: str, operand: Operand) -> tuple[Tensor, Shape, tuple[slice, ...]]:
    """The view the op sees, the shape of the leaf behind it, and where in the leaf it lies."""
    dtype = dtype_by_name(operand.dtype)
    shape = operand.shape
    axes = operand.permute or tuple(range(len(shape)))
    dense = tuple(shape[axes.index(a)] for a in range(len(shape)))
    pad = operand.pad or (0,) * len(shape)
    assert len(pad) == len(shape) == len(axes), (
        f"{name}: pad and permute need one entry a dimension"
    )
    full = tuple(n + p for n, p in zip(dense, pad, strict=True))
    starts = [
        -(-p // (2 * unit)) * unit
        for p, unit in zip(pad, (*(1,) * (len(shape) - 1), dtype.block), strict=True)
    ]
    declare = {"weight": graph.weight, "input": graph.input, "state": graph.state}[operand.role]
    t = declare(name, dtype, full)
    for axis, (start, n) in enumerate(zip(starts, dense, strict=True)):
        if full[axis] != n:
            t = graph.slice(t, axis, start, start + n)
    view = graph.permute(t, axes) if operand.permute else t
    return view, full, tuple(slice(s, s + n) for s, n in zip(starts, dense, strict=True))


def declare_case(spec: OpSpec, case: Case) -> Tensor:
    """The node of a case, without any data."""
    graph = Graph()
    srcs = [
        None if o is None else _declare(graph, f"src{i}", o)[0] for i, o in enumerate(case.srcs)
    ]
    return graph.op(spec.name, *srcs, **case.params)


def _surroundings(dtype: DType, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Data for the padding: values that show in the result if a kernel reads them."""
    if dtype.is_integer:
        return np.full(shape, np.iinfo(dtype.storage).min // 3, dtype.storage)
    if dtype.is_quantized:  # these cannot hold NaN
        return (rng.standard_normal(shape) * 300).astype(np.float32)
    return np.full(shape, np.nan, np.float32)


def _values(operand: Operand, dtype: DType, rng: np.random.Generator) -> np.ndarray:
    data = operand.data
    if data is None:
        assert not dtype.is_integer, "integer operands need data"
        data = rng.standard_normal(operand.shape)
    elif callable(data):
        data = data(rng, operand.shape)
    elif isinstance(data, range):
        data = list(data)
    kind = dtype.storage if dtype.is_integer else np.float32
    return np.broadcast_to(np.asarray(data, kind), operand.shape)


def nmse(actual: np.ndarray, expected: np.ndarray) -> float:
    """Mean squared error over the mean square of `expected`; infinite when they cannot agree.

    NaN and infinities must be the same in both, and then do not count.
    """
    if actual.shape != expected.shape:
        return np.inf
    a, e = actual.astype(np.float64).reshape(-1), expected.astype(np.float64).reshape(-1)
    finite = np.isfinite(e)
    if (
        not np.array_equal(a[~finite], e[~finite], equal_nan=True)
        or not np.isfinite(a[finite]).all()
    ):
        return np.inf
    a, e = a[finite], e[finite]
    error, power = np.sum((a - e) ** 2), np.sum(e**2)
    return 0.0 if error == 0 else float(error / power) if power > 0 else np.inf


def in_place_sources(node: Tensor) -> list[int]:
    """The sources whose memory the result may take over, by the rule of `OpSpec.in_place`."""
    assert node.op is not None
    found = []
    for i in op_spec(node.op).in_place:
        s = node.srcs[i] if i < len(node.srcs) else None
        if s is not None and s.owner is s and (s.dtype, s.shape) == (node.dtype, node.shape):
            found.append(i)
    return found


class GuardedMemory:
    """One guarded buffer an owner: the `Memory` a backend compiles against."""

    def __init__(
        self, backend: Backend, built: Built, packed: bool = False, in_place: int | None = None
    ) -> None:
        self._places: dict[Tensor, tuple[Buffer, int]] = {}
        self._packed: set[Tensor] = set()
        self.rows: dict[Tensor, str] = {}
        node = built.node
        for name, leaf in built.graph.leaves.items():
            raw = built.feeds[name]
            if packed and backend.packed_bytes(leaf, [node]):
                self._places[leaf] = backend.load_weight(leaf, raw, True), 0
                self._packed.add(leaf)
            else:
                self._place(backend, leaf, raw)
        if in_place is not None:
            source = node.srcs[in_place]
            assert source is not None
            self._places[node] = self._places[source.owner]
        elif node.view_of is None:
            self._place(backend, node, np.full(node.nbytes, RUBBISH, np.uint8))

    def _place(self, backend: Backend, owner: Tensor, raw: np.ndarray) -> None:
        buffer = backend.alloc(owner.nbytes + 2 * GUARD)
        guard = np.full(GUARD, RUBBISH, np.uint8)
        buffer.write(0, np.concatenate([guard, raw, guard]))
        self._places[owner] = buffer, GUARD

    def locate(self, owner: Tensor) -> tuple[Buffer, int]:
        return self._places[owner]

    def is_packed(self, owner: Tensor) -> bool:
        return owner in self._packed

    def bytes_of(self, owner: Tensor) -> np.ndarray:
        """The owner's bytes, guards left off."""
        buffer, offset = self._places[owner]
        return buffer.read(offset, owner.nbytes)

    def check_guards(self) -> None:
        """AssertionError naming the tensor beyond whose memory something was written."""
        for owner, (buffer, _) in self._places.items():
            if owner in self._packed:
                continue
            raw = buffer.read(0, owner.nbytes + 2 * GUARD)
            assert (raw[:GUARD] == RUBBISH).all(), f"written before {owner.name}"
            assert (raw[GUARD + owner.nbytes :] == RUBBISH).all(), f"written past {owner.name}"


def run_on(
    backend: Backend,
    built: Built,
    n_threads: int | None = None,
    packed: bool = False,
    in_place: int | None = None,
) -> np.ndarray:
    """The result of the case on `backend`, decoded.

    packed: let the backend repack weights where it wants to. in_place: the source whose memory the
    result takes over. Raises AssertionError when anything beside the result was written.
    """
    memory = GuardedMemory(backend, built, packed, in_place)
    node = built.node
    backend.lower([node], memory, n_threads).run()
    memory.check_guards()
    taken = None if in_place is None else node.srcs[in_place]
    for name, leaf in built.graph.leaves.items():
        if leaf is taken or memory.is_packed(leaf):
            continue
        changed = memory.bytes_of(leaf) != built.feeds[name]
        if leaf is node.owner:
            changed &= ~_may_change(built)
        for state, rows in _also_written(built):
            if leaf is state.owner:
                changed &= ~_bytes_of_rows(state, rows)
                found, expected = (
                    read(state, {leaf: raw}) for raw in (memory.bytes_of(leaf), built.after[name])
                )
                assert nmse(found[rows], expected[rows]) <= built.tolerance, f"{name}: wrong rows"
        assert not changed.any(), f"{name}: byte {int(np.argmax(changed))} was overwritten"
    return read(node, {node.owner: memory.bytes_of(node.owner)})


def results_of_runs(backend: Backend, built: Built, n: int) -> set[bytes]:
    """The different results of n runs of one program."""
    memory = GuardedMemory(backend, built)
    program = backend.lower([built.node], memory)
    results = set()
    for _ in range(n):
        program.run()
        results.add(memory.bytes_of(built.node.owner).tobytes())
    memory.check_guards()
    return results


def _values_of_srcs(built: Built) -> list[np.ndarray | None]:
    buffers = {leaf: built.feeds[name] for name, leaf in built.graph.leaves.items()}
    return [None if s is None else read(s, buffers) for s in built.node.srcs]


def _also_written(built: Built) -> list[tuple[Tensor, np.ndarray]]:
    """The states that the op updates beside computing its result, each with the rows."""
    node = built.node
    assert node.op is not None
    spec = op_spec(node.op)
    if not spec.also_writes:
        return []
    updates = spec.written_also(*_values_of_srcs(built), **node.params)
    states = [node.srcs[i] for i in spec.also_writes]
    return [(s, rows) for s, (_, rows) in zip(states, updates, strict=True) if s is not None]


def _may_change(built: Built) -> np.ndarray:
    """For an op that writes into a state: which bytes of that leaf it may change, as bools."""
    node = built.node
    assert node.op is not None
    return _bytes_of_rows(node, op_spec(node.op).written(*_values_of_srcs(built), **node.params))


def _bytes_of_rows(t: Tensor, rows: np.ndarray) -> np.ndarray:
    """Which bytes of its owner these rows of `t` lie in, as bools."""
    mask = np.zeros(t.owner.nbytes, np.uint8)
    target = window(t, {t.owner: mask})
    target[rows] = np.full(t.dtype.nbytes, 255, np.uint8).view(target.dtype)[0]
    return mask != 0
