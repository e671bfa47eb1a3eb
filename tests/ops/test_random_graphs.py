"""Random graphs over all ops, compiled as models are: fused, laid out, run as one program.

Each op is held to its reference on the operands that it had, and the whole program must give the
same bits as its ops one by one, between guard bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from harness import GUARD, RUBBISH, _operand, declare_case

from gguflow.engine.backends.base import Buffer
from gguflow.engine.backends.cpu.backend import CpuBackend
from gguflow.engine.backends.numpy import NumpyBackend
from gguflow.engine.compile import PlacementRules, Plan, PlanOptions, compile_graph
from gguflow.engine.graph import F32, Case, Graph, OpSpec, Role, Tensor, all_ops, op_spec
from gguflow.engine.verify.ops import OpRow, Shadow, ShadowProgram
from gguflow.engine.verify.oracle import Oracle

LARGEST = 6_000  # elements of an operand
SLACK = 30  # times what the op's own tests allow: operands are not chosen to be kind to it
CANCELS = 31  # results of fewer values may be differences of large ones


@cache
def cpu() -> CpuBackend:
    return CpuBackend(2)


@cache
def small_cases() -> dict[str, list[Case]]:
    """Of every op, those that there is a kernel for."""

    def fits(spec: OpSpec, case: Case) -> bool:
        if any(o is not None and np.prod(o.shape) > LARGEST for o in case.srcs):
            return False
        return not spec.optional or cpu().supports(declare_case(spec, case))

    found = {s.name: [c for c in s.cases() if fits(s, c)] for s in all_ops()}
    return {name: cases for name, cases in found.items() if cases}


class Maker:
    """A graph under construction: values that later ops may take as operands."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.graph = Graph()
        self.feeds: dict[str, np.ndarray] = {}
        self.values: list[Tensor] = []

    def operand(self, operand: Any, name: str) -> Tensor:
        """An earlier value where one fits, seen through a view or not; else a leaf."""
        free = operand.role == "input" and operand.dtype == "f32" and operand.data is None
        fits = [v for v in self.values if v.size == np.prod(operand.shape)] if free else []
        if not fits or self.rng.random() < 0.3:
            return _operand(self.graph, self.feeds, name, operand, self.rng)
        value = fits[int(self.rng.integers(len(fits)))]
        if value.shape != operand.shape:
            return self.graph.reshape(value, operand.shape)
        return value

    def add(self, spec: OpSpec, case: Case, number: int) -> None:
        srcs = [None if o is None else self.operand(o, f"{number}.{i}")
                for i, o in enumerate(case.srcs)]  # fmt: skip
        node = self.graph.op(spec.name, *srcs, name=f"n{number}", **case.params)
        if node.dtype is F32 and node.view_of is None and node.shape and node.shape[-1] > 1:
            # What is large or small would soon be nothing but infinities and zeros.
            self.values.append(self.graph.rms_norm(node, eps=1e-6, name=f"n{number}.norm"))
        self.graph.output(node)

    def make(self, n_ops: int) -> Graph:
        names = list(small_cases())
        for number in range(n_ops):
            spec = op_spec(names[int(self.rng.integers(len(names)))])
            cases = small_cases()[spec.name]
            self.add(spec, cases[int(self.rng.integers(len(cases)))], number)
        return self.graph


class PlanMemory:
    """A plan's memory: leaves and outputs in guarded buffers of their own, the rest in an arena."""

    def __init__(self, plan: Plan, feeds: dict[str, np.ndarray]) -> None:
        self.rows: dict[Tensor, str] = {}
        backend = cpu()
        self.places: dict[Tensor, tuple[Buffer, int]] = {}
        self.packed: set[Tensor] = set()
        users: dict[Tensor, list[Tensor]] = {}
        for n in plan.nodes:
            for s in n.live_srcs():
                users.setdefault(s.owner, []).append(n)
        for name, leaf in plan.graph.leaves.items():
            if leaf not in users:
                continue
            if leaf.role is Role.WEIGHT and backend.packed_bytes(leaf, users[leaf]):
                self.places[leaf] = backend.load_weight(leaf, feeds[name], True), 0
                self.packed.add(leaf)
            else:
                self.places[leaf] = self._guarded(feeds[name])
        (arena,) = plan.arenas.values()
        self.arena, at = self._guarded(np.full(arena.nbytes, RUBBISH, np.uint8))
        self.places |= {t: (self.arena, at + offset) for t, offset in arena.offsets.items()}

    def _guarded(self, raw: np.ndarray) -> tuple[Buffer, int]:
        buffer = cpu().alloc(raw.nbytes + 2 * GUARD)
        guard = np.full(GUARD, RUBBISH, np.uint8)
        buffer.write(0, np.concatenate([guard, raw.reshape(-1).view(np.uint8), guard]))
        return buffer, GUARD

    def locate(self, owner: Tensor) -> tuple[Buffer, int]:
        return self.places[owner]

    def is_packed(self, owner: Tensor) -> bool:
        return owner in self.packed

    def bytes_of(self, owner: Tensor) -> np.ndarray:
        buffer, offset = self.places[owner]
        return buffer.read(offset, owner.nbytes).copy()

    def check_guards(self) -> None:
        for owner, (buffer, _) in self.places.items():
            if owner not in self.packed:
                raw = buffer.read(0, buffer.nbytes)
                assert (raw[:GUARD] == RUBBISH).all(), owner.name
                assert (raw[-GUARD:] == RUBBISH).all(), owner.name


def check_graph(seed: int) -> int:
    """Make, compile and run one; the number of its nodes."""
    maker = Maker(seed)
    graph = maker.make(int(maker.rng.integers(3, 16)))
    fuse = bool(maker.rng.random() < 0.8)
    plan = compile_graph(graph, PlanOptions(PlacementRules((cpu(), NumpyBackend())), fuse))
    nodes = [n for n in plan.nodes if plan.placement.of[n] == "cpu"]
    assert len(nodes) == len(plan.nodes), "an op has no kernel"
    raw = {name: maker.feeds[name] for name in plan.graph.leaves if name in maker.feeds}

    rows: list[OpRow] = []
    shadow = Shadow(Oracle(NumpyBackend()), raw.get, rows.append)
    apart = PlanMemory(plan, raw)
    with np.errstate(all="ignore"):
        ShadowProgram(cpu(), shadow, nodes, apart, 2).run()
    apart.check_guards()
    for row in rows:
        size = np.prod(row.shape)
        limit = SLACK * max(row.limit, 1e-7) if size >= CANCELS else np.inf
        assert row.error <= limit or not np.isfinite(row.error), (seed, row)

    whole = PlanMemory(plan, raw)
    program = cpu().lower(nodes, whole)
    program.run()
    whole.check_guards()
    for t in plan.graph.outputs:
        assert np.array_equal(apart.bytes_of(t.owner), whole.bytes_of(t.owner)), (seed, t)
    return len(nodes)


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(seed: int) -> None:
    assert check_graph(seed) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_graphs(block: int) -> None:
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        check_graph(seed)
