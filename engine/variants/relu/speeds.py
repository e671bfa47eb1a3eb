"""How fast each side computes a sparse layer, measured with its own kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from time import perf_counter

import numpy as np

from gguflow.engine.backends.base import Backend
from gguflow.engine.compile import PlacementRules, PlanOptions, compile_graph
from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import F32, DType, Graph, Role, Tensor
from gguflow.engine.quants import encode
from gguflow.engine.runtime import BoundPlan, bind

from .costs import NeuronBytes, Side, Speeds

FRACTIONS = (0.02, 0.2)  # active neurons at the two points of the line
ROUNDS = 16  # of which the best quarter counts: anything else on the machine lowers a reading
MAX_BYTES = 256 << 20  # of the layer measured with: past most caches, soon allocated
CHAIN = 8  # meetings in a run


class SpeedError(RuntimeError):
    """A processor whose speed cannot be measured: names it and what it lacks."""


@dataclass(frozen=True)
class LayerShape:
    """A sparse layer: its sizes and the types of its matrices, None for a gate that it lacks."""

    n_embd: int
    n_ff: int
    gate: DType | None
    up: DType
    down: DType

    @property
    def types(self) -> tuple[DType | None, DType, DType]:
        return self.gate, self.up, self.down

    @property
    def neuron(self) -> NeuronBytes:
        return NeuronBytes(*(t.row_bytes(self.n_embd) if t else 0 for t in self.types))


def measure(
    device: Backend, host: Backend, shape: LayerShape, n_threads: int | None = None
) -> Speeds:
    """Both sides and what it costs to meet; a second or so. Raises SpeedError."""
    speeds = Speeds(
        measure_side(host, shape, n_threads),
        measure_side(device, shape, n_threads),
        measure_sync(device, host, shape.n_embd, n_threads),
    )
    if device.memory is not None:
        device.memory.trim()  # a budget of its memory counts what was used here
    return speeds


def measure_side(backend: Backend, shape: LayerShape, n_threads: int | None = None) -> Side:
    """The line through the times of a layer with few and with many active neurons, which differ
    from run to run as they do between layers. Raises SpeedError when there is no kernel."""
    neuron = shape.neuron.total
    n_rows = max(1, min(shape.n_ff, MAX_BYTES // neuron))
    g = Graph()
    rows = [
        g.weight(name, dtype, (n_rows, shape.n_embd)) if dtype else None
        for name, dtype in zip(("gate", "up", "down"), shape.types, strict=True)
    ]
    x, idx = g.input("x", F32, (1, shape.n_embd)), g.input("idx", F32, (1, n_rows))
    out = g.output(g.sparse_ffn(*rows, x, idx))
    if not backend.supports(out):
        types = "/".join(dict.fromkeys(t.name for t in shape.types if t))
        raise SpeedError(f"{backend.name} has no kernel for sparse layers of {types}")
    plan = _bound(g, {backend.name: backend}, (), n_threads)
    plan.inputs["x"][:] = 1.0
    counts = [max(1, round(f * n_rows)) for f in FRACTIONS]
    seconds = [_seconds(plan, n, n_rows) for n in counts]
    n_bytes = [n * neuron for n in counts]
    slope = (seconds[1] - seconds[0]) / max(n_bytes[1] - n_bytes[0], 1)
    if slope <= 0:  # too small to tell: all of it is the layer's own time
        return Side(n_bytes[1] / seconds[1])
    return Side(1 / slope, max(0.0, seconds[0] - slope * n_bytes[0]))


def measure_sync(
    device: Backend, host: Backend, n_embd: int, n_threads: int | None = None
) -> float:
    """Seconds to bring a layer's input to the host and its result back to the device: the time of a
    chain that does it `CHAIN` times, less that of the same chain on the device alone."""

    def seconds(where: str) -> float:
        g = Graph()
        x: Tensor = g.input("x", F32, (1, n_embd))
        for i in range(CHAIN):
            x = g.scale(x, s=0.5, name=f"there.{i}")
            x = g.add(x, g.relu(x, name=f"here.{i}"), name=f"back.{i}")
        g.output(x)
        rules = ((r"here\.", where), (r"", device.name))
        plan = _bound(g, {b.name: b for b in (device, host)}, rules, n_threads)
        return _wall(plan)

    return max(0.0, seconds(host.name) - seconds(device.name)) / CHAIN


def _bound(
    g: Graph,
    backends: Mapping[str, Backend],
    overrides: tuple[tuple[str, str], ...],
    n_threads: int | None,
) -> BoundPlan:
    """A graph ready to run, its weights all positive, so that no product is skipped."""
    plan = compile_graph(g, PlanOptions(PlacementRules(tuple(backends.values()), overrides)))
    weights = {}
    for t in plan.leaves(Role.WEIGHT):
        raw = constant(t.dtype, t.shape, 0.01)
        weights[t.name] = backends[plan.placement.of[t]].load_weight(t, raw, False)
    by_space = {b.space: b for b in backends.values()}
    arenas = {s: by_space[s].alloc(max(a.nbytes, 1)) for s, a in plan.arenas.items()}
    return bind(plan, backends, weights, set(), {}, arenas, n_threads)


def _seconds(plan: BoundPlan, n_active: int, n_rows: int) -> float:
    """Of one run with other active neurons each time, as the backend's clock has it."""
    rng = np.random.default_rng(n_active)
    taken = []
    for _ in range(ROUNDS + 2):
        plan.inputs["idx"][:] = -1.0
        plan.inputs["idx"][0, rng.choice(n_rows, n_active, replace=False)] = 1.0
        _, spans = plan.run_timed()
        taken.append(max(int(spans[:, 1].max() - spans[:, 0].min()), 1) / 1e9)
    return typical(taken)


def _wall(plan: BoundPlan) -> float:
    """Seconds of a run as the caller sees it."""
    taken = []
    for _ in range(ROUNDS + 2):
        began = perf_counter()
        plan.run()
        taken.append(perf_counter() - began)
    return typical(taken)


def typical(taken: Sequence[float]) -> float:
    """The time that a quarter of the runs stay below, without the first two, which load kernels."""
    return sorted(taken[2:])[len(taken[2:]) // 4]


def constant(dtype: DType, shape: Sequence[int], value: float) -> np.ndarray:
    """uint8 bytes of a weight whose elements are all `value`, as the type rounds it."""
    row = encode(dtype, np.full((1, shape[-1]), value, np.float32)).view(np.uint8).reshape(-1)
    return np.resize(row, row.size * prod(shape[:-1]))
