"""How long a layer of a ReLU model takes a token, in the form that the model would run.

The layers have the model's sizes and types and made-up weights, in which as many neurons fire as
are wanted, and other ones from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter

import numpy as np

from gguflow.engine.backends.base import Backend
from gguflow.engine.compile import PlacementRules, PlanOptions, compile_graph
from gguflow.engine.dataclass import replace
from gguflow.engine.graph import F32, DType, Graph, Role, Tensor
from gguflow.engine.load import WeightSource, WeightStore, weight_users
from gguflow.engine.planning import Setup, record, token_key
from gguflow.engine.profile.machine import cores
from gguflow.engine.runtime import bind

from .run import Mode, sparse_run, with_run
from .speeds import constant, typical

# Bytes of a form's layers: past most caches with the other forms', soon allocated.
CACHES = 48 << 20
PATTERNS = 8  # sets of neurons that fire in turn
ROUNDS, LEAST_ROUNDS, SECONDS = 34, 10, 0.4  # runs of a form, and after how long fewer are enough
VALUE = 0.01  # of weights, or its negative
SHIFT = 1e-3  # of what is centred, so that a neuron that is in every set fires
Shares = Sequence[float] | np.ndarray  # by layer


def form_seconds(
    backend: Backend, forms: Mapping[Mode, Setup], fired: Shares, computed: Shares
) -> dict[Mode, float]:
    """Seconds that a token takes for a layer, by form.

    fired, computed: shares of the neurons, by layer, that fire and that the predictor lets through.
    The forms run in turn, so that what else the machine does is the same for all of them and each
    finds the caches full of the others' weights.
    """
    layers = {mode: _Layers(backend, setup, fired, computed) for mode, setup in forms.items()}
    taken: dict[Mode, list[float]] = {mode: [] for mode in forms}
    began = perf_counter()
    for k in range(ROUNDS):
        for mode, form in layers.items():
            taken[mode].append(form.seconds(k))
        if k + 1 >= LEAST_ROUNDS and perf_counter() - began > SECONDS:
            break
    return {mode: typical(t) for mode, t in taken.items()}


class _Layers:
    """Layers of one form, ready to run."""

    def __init__(self, backend: Backend, setup: Setup, fired: Shares, computed: Shares) -> None:
        hp = setup.source.arch.hp
        mine = {n: w for n, w in setup.source.weights.items() if is_of_layer(n)}
        n_bytes = sum(w.nbytes for w in mine.values()) // hp.n_layer
        self.n = min(hp.n_layer, max(1, CACHES // max(n_bytes, 1)))
        layers = [k * hp.n_layer // self.n for k in range(self.n)]
        run = sparse_run(setup)
        assert run is not None
        g = record(with_run(setup, replace(run, threshold=0.0)), token_key())  # of made-up scores
        _cut(g, layers, g.input("x", F32, (1, hp.n_embd)))
        options = PlanOptions(PlacementRules((backend,), ()), setup.options.fuse)
        plan = compile_graph(g, options)
        self.patterns, weights = _made_up(mine, layers, hp.n_embd, fired, computed)
        store = WeightStore()
        store.load(weights, plan.leaves(Role.WEIGHT), weight_users(plan), lambda _: backend)
        arenas = {s: backend.alloc(max(a.nbytes, 1)) for s, a in plan.arenas.items()}
        self.plan = bind(
            plan, {backend.name: backend}, store.buffers, store.packed, {}, arenas, cores()
        )

    def seconds(self, k: int) -> float:
        """Of a layer in the k-th run."""
        self.plan.inputs["x"][:] = self.patterns[k % len(self.patterns)]
        began = perf_counter()
        self.plan.run()
        return (perf_counter() - began) / self.n


def _cut(g: Graph, layers: Sequence[int], x: Tensor) -> None:
    """Leave the feed-forward parts of some layers, one reading the other's result, the first x."""
    nodes: list[Tensor] = []
    for i in layers:
        part = [n for n in g.nodes if n.name.startswith(f"blk.{i}.ffn.")]
        for node in part:
            outer = (s for s in node.live_srcs() if s.role is Role.NODE and s not in part)
            for before in outer:
                node.srcs = tuple(x if s is before else s for s in node.srcs)
        nodes += part
        x = part[-1]
    g.nodes, g.outputs = nodes, [x]
    used = {s for n in nodes for s in n.live_srcs()}
    g.leaves = {name: t for name, t in g.leaves.items() if t in used}


def is_of_layer(name: str) -> bool:
    """Whether a weight is of a feed-forward layer or its predictor."""
    return name.startswith("blk.") and (".ffn_" in name or ".fc" in name)


def _made_up(
    mine: Mapping[str, WeightSource],
    layers: Sequence[int],
    n_embd: int,
    fired: Shares,
    computed: Shares,
) -> tuple[np.ndarray, dict[str, WeightSource]]:
    """Inputs [patterns, n_embd] and weights under which the k-th input makes the k-th set fire.

    Input k is one on the k-th part of the columns and zero elsewhere. The row of a neuron's gate,
    of up where there is none, is positive on the parts of the sets it is in, else negative; fc1 and
    fc2 hold the same in factors. The down matrix is zero, so that every layer has the same input.
    """
    parts = ("ffn_norm", "ffn_gate", "ffn_up", "ffn_down", "ffn_down_t", "fc1", "fc2")
    first = "ffn_gate" if any(".ffn_gate." in name for name in mine) else "ffn_up"
    by_layer = {i: {p: mine[name] for p in parts if (name := f"blk.{i}.{p}.weight") in mine}
                for i in layers}  # fmt: skip
    every = [(p, w) for ws in by_layer.values() for p, w in ws.items()]
    unit = max(w.dtype.block for p, w in every if p in (first, "fc1"))
    ranks = [w.shape[1] // w.dtype.block for p, w in every if p == "fc2"]
    n = min([PATTERNS, n_embd // unit, *ranks])
    columns = _bounds(n_embd, unit, n)
    inputs = _members(columns).T.astype(np.float32)
    rng = np.random.default_rng(0)
    made: dict[str, WeightSource] = {}
    for i, ws in by_layer.items():
        n_ff = ws[first].shape[0]
        order = np.stack([rng.permutation(n_ff) for _ in range(n)], axis=1)
        reads: dict[str, Callable[[], np.ndarray]] = {
            part: partial(constant, w.dtype, w.shape, value)
            for part, value in (("ffn_norm", 1.0), ("ffn_up", VALUE), ("ffn_down", 0.0),
                                ("ffn_down_t", 0.0))
            if (w := ws.get(part)) is not None
        }  # fmt: skip
        reads[first] = partial(_signed, ws[first].dtype, columns, order < round(fired[i] * n_ff))
        if "fc2" in ws:
            fc1, fc2 = ws["fc1"], ws["fc2"]
            hidden = _bounds(fc2.shape[1], fc2.dtype.block, n)
            passes = order < round(computed[i] * n_ff)
            reads["fc1"] = partial(_signed, fc1.dtype, columns, _members(hidden))
            reads["fc2"] = partial(_signed, fc2.dtype, hidden, passes)
        for part, read in reads.items():
            made[ws[part].name] = replace(ws[part], read=read, release=_nothing)
    for name, w in mine.items():
        if name.endswith(".bias"):
            value = SHIFT if name.endswith("ffn_norm.bias") else 0.0
            read = partial(constant, w.dtype, w.shape, value)
            made[name] = replace(w, read=read, release=_nothing)
    return inputs, made


def _nothing() -> None:
    """Made-up weights have no pages to let go."""


def _members(bounds: Sequence[tuple[int, int]]) -> np.ndarray:
    """bool [size, parts]: which part each place is in."""
    out = np.zeros((bounds[-1][1], len(bounds)), bool)
    for k, (a, b) in enumerate(bounds):
        out[a:b, k] = True
    return out


def _bounds(size: int, unit: int, n: int) -> list[tuple[int, int]]:
    """n parts of about the same size, of whole units."""
    at = [k * (size // unit) // n * unit for k in range(n)] + [size]
    return list(zip(at, at[1:], strict=False))


def _signed(dtype: DType, bounds: Sequence[tuple[int, int]], positive: np.ndarray) -> np.ndarray:
    """uint8 bytes of a matrix: row j is VALUE where positive[j, part], else -VALUE."""
    size = bounds[-1][1]
    plus, minus = (constant(dtype, (1, size), v) for v in (VALUE, -VALUE))
    out = np.tile(minus, (len(positive), 1))
    for k, (a, b) in enumerate(bounds):
        columns = slice(dtype.row_bytes(a), dtype.row_bytes(b))
        out[positive[:, k], columns] = plus[columns]
    return out.reshape(-1)
