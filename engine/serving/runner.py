"""Runs batches of a model's sequences: states, arenas, lowered plans, and the inputs of a plan."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np

from gguflow.engine.backends.base import Backend, Buffer, Live
from gguflow.engine.compile import Plan
from gguflow.engine.compile.batch_rows import OUTPUTS, TOKENS
from gguflow.engine.compile.types import HOST_SPACE
from gguflow.engine.graph import Role
from gguflow.engine.plan_key import PAGE, PlanKey
from gguflow.engine.profile import Profile
from gguflow.engine.runtime import BoundPlan, bind
from gguflow.models.base import Architecture

from .kv import Group, KvCache
from .rows import Rows

if TYPE_CHECKING:
    from gguflow.engine.model import Model

PLAN_CACHE = 32  # lowered plans that a runner keeps


class Sampling(NamedTuple):
    """The `sample` op's operands for n outputs: f32 [n, 8], i64 [n, 2], i32 [n, N_HISTORY]."""

    settings: np.ndarray
    rng: np.ndarray
    history: np.ndarray


class Results(Sequence[np.ndarray]):
    """A run's outputs, overwritten by the next one: of each the rows that were asked for, in their
    order. Logits are f32 [n_out, n_vocab]; tokens, when sampled, the last, i32 [n_out]."""

    def __init__(self, bound: BoundPlan, key: PlanKey, rows: Rows, at: np.ndarray | slice) -> None:
        self._outputs, self._key, self._at = bound.outputs, key, at
        self._where = slice(len(rows.out)) if key.picks else _rows_at(at, rows.out, rows.n_tokens)

    def __len__(self) -> int:
        return len(self._outputs)

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...

    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(index, slice):
            return [self._live(x) for x in self._outputs[index]]
        return self._live(self._outputs[index])

    def _live(self, x: np.ndarray) -> np.ndarray:
        # Values from inside a model have a row a token up to where outputs are chosen.
        return x[self._where if len(x) == self._key.n_out else self._at]


def _rows_at(at: np.ndarray | slice, rows: np.ndarray, n: int) -> np.ndarray | slice:
    """Where rows of the run's n lie in the plan: a slice if it is all of the first ones."""
    if isinstance(at, slice):
        return at if len(rows) == n else rows
    return at[rows]


def copy_page(
    arch: Architecture, n_pages: Mapping[str, int], states: Mapping[str, Buffer],
    group: str, source: int, target: int,
) -> None:  # fmt: skip
    """Copy all rows of a page in the states of a group's layers. n_pages: by group."""
    for i in range(arch.hp.n_layer):
        layer = arch.cache(i)
        if layer is not None and layer.group == group:
            for state in (states[f"kv.{i}.k"], states[f"kv.{i}.v"]):
                n = state.nbytes // n_pages[group]
                state.write(target * n, state.read(source * n, n))


class Runner:
    """A model's KV cache and the plans that fill it. One run at a time.

    Every run is recorded in `profile`.
    """

    def __init__(self, model: Model, profile: Profile | None = None) -> None:
        self.model = model
        self.profile = profile
        self.buckets = model.buckets
        size = model.cache_size()
        layers = filter(None, (model.arch.cache(i) for i in range(model.hp.n_layer)))
        windows = {layer.group: layer.window for layer in layers}
        self._states: dict[str, Buffer] = {}
        self.kv = KvCache(
            {name: Group(n, windows[name]) for name, n in size.n_pages.items()},
            model.options.n_seqs,
            size.n_entries,
            partial(copy_page, model.arch, size.n_pages, self._states),
            share_generated=all(b.space == HOST_SPACE for b in model.backends.values()),
        )
        self._arenas: dict[str, Buffer] = {}
        self._plans: OrderedDict[PlanKey, BoundPlan] = OrderedDict()
        self._reserve(model.plan(self.buckets.largest))

    # -- plans -----------------------------------------------------------------------------------

    def _reserve(self, plan: Plan) -> None:
        """Allocate states, and an arena that fits; plans lowered for a smaller one are dropped."""
        by_space: dict[str, Backend] = {b.space: b for b in self.model.backends.values()}
        for t in plan.leaves(Role.STATE):
            if t.name not in self._states:
                self._states[t.name] = by_space[plan.space_of(t)].alloc(t.nbytes)
        for space, arena in plan.arenas.items():
            if space not in self._arenas or self._arenas[space].nbytes < arena.nbytes:
                self._arenas[space] = by_space[space].alloc(max(arena.nbytes, 1))
                self._plans.clear()

    def plan(self, key: PlanKey) -> BoundPlan:
        """The lowered plan of these sizes, from the cache when it is there."""
        bound = self._plans.get(key)
        if bound is not None:
            self._plans.move_to_end(key)
            return bound
        plan = self.model.plan(key)
        self._reserve(plan)
        o, w = self.model.options, self.model.weights
        threads = (o.n_threads_batch if key.n_tokens > 1 else o.n_threads) or o.n_threads or None
        bound = bind(
            plan, self.model.backends, w.buffers, w.packed, self._states, self._arenas, threads
        )
        self._plans[key] = bound
        while len(self._plans) > PLAN_CACHE:
            self._plans.popitem(last=False)
        return bound

    # -- runs ------------------------------------------------------------------------------------

    def run(self, rows: Rows, sampling: Sampling | None = None, every: bool = False) -> Results:
        """Run rows whose pages are there, see `KvCache.grow`; that they are computed is for the
        caller to tell it.

        every: each row has an output, in order. sampling: of the outputs, which then end with the
        tokens chosen.
        """
        began = time.perf_counter_ns()
        key = self._key(rows, sampling is not None, every)
        bound = self.plan(key)
        at = self._write(bound, key, rows, sampling)
        kind = "decode" if rows.n_single == rows.n_tokens else "prefill"
        live = None
        if isinstance(at, slice):
            live = {TOKENS: rows.n_tokens, OUTPUTS: max(1, len(rows.out))}
        self._go(bound, live, kind, rows.n_tokens, int(rows.pos[0]), began)
        return Results(bound, key, rows, at)

    def run_one(
        self, seq: int, token: int, sampling: Sampling | None = None, output: bool = True
    ) -> Sequence[np.ndarray]:
        """`run` for one generated token of one sequence, which should cost little besides."""
        began = time.perf_counter_ns()
        bound = self.write_one(seq, token, sampling, output)
        self._go(bound, None, "decode", 1, self.kv.length(seq), began)
        return bound.outputs

    def has_loop(self, n: int) -> bool:
        """Whether n single rows can feed themselves: see `write`."""
        return self.plan(self.buckets.key(n, 0, n, n, False, True)).token_loop is not None

    def write(self, rows: Rows, sampling: Sampling) -> BoundPlan:
        """The plan of single rows with its inputs written, for a loop that feeds itself."""
        key = self._key(rows, True, False)
        bound = self.plan(key)
        self._write(bound, key, rows, sampling)
        return bound

    def write_one(
        self, seq: int, token: int, sampling: Sampling | None, output: bool = True
    ) -> BoundPlan:
        """The same for one row."""
        bound = self.plan(PlanKey(1, 0, 1, int(output), sampling is not None))
        inputs, pos = bound.inputs, self.kv.length(seq)
        inputs["tokens"][0], inputs["pos"][0], inputs["seq"][0] = token, pos, 0
        page, row = divmod(pos, PAGE)
        for group, tables in self.kv.tables.items():
            inputs["rows." + group][0] = int(tables[seq, page]) * PAGE + row
            table = inputs.get("table." + group)
            if table is not None:
                table[0] = tables[seq]
        if sampling is not None:
            inputs["sampler.settings"][:] = sampling.settings
            inputs["sampler.rng"][:] = sampling.rng
            inputs["sampler.history"][:] = sampling.history
        return bound

    def _go(
        self, bound: BoundPlan, live: Live | None, kind: str, n: int, n_past: int, began: int
    ) -> None:
        if self.profile is None:
            bound.run(live)
            return
        ops, spans = bound.run_timed(live)
        wall = time.perf_counter_ns() - began
        self.profile.add_step(kind, n, ops, spans, wall, n_past)

    def _key(self, rows: Rows, sample: bool, every: bool) -> PlanKey:
        n_chunk = rows.n_tokens - rows.n_single
        n_out = len(rows.out)
        return self.buckets.key(rows.n_single, n_chunk, len(rows.seqs), n_out, every, sample)

    def _write(
        self, bound: BoundPlan, key: PlanKey, rows: Rows, sampling: Sampling | None
    ) -> np.ndarray | slice:
        """A plan's inputs; returns where among its rows the run's are."""
        inputs, n, m = bound.inputs, rows.n_tokens, len(rows.seqs)
        at: np.ndarray | slice = slice(n)
        gap = key.n_single - rows.n_single
        if gap > 0 and n > rows.n_single:
            at = np.arange(n)
            at[rows.n_single :] += gap
        padded = n < key.n_tokens
        for name, values in (("tokens", rows.tokens), ("pos", rows.pos), ("seq", rows.seq)):
            x = inputs[name]
            if padded:
                x[:] = -1
            x[at] = values
        seqs = rows.seqs[rows.seq]
        for group, tables in self.kv.tables.items():
            x = inputs[f"rows.{group}"]
            if padded:
                x[:] = -1
            x[at] = self.kv.rows(group, seqs, rows.pos)
            table = inputs.get(f"table.{group}")  # a plan without outputs may need none
            if table is not None:
                table[:m] = tables[rows.seqs]
        n_out = len(rows.out)
        out: np.ndarray | slice = slice(n_out)
        if key.picks:
            ids, pos, seq = (inputs[f"out.{x}"] for x in ("ids", "pos", "seq"))
            if n_out < key.n_out:
                ids[n_out:], pos[n_out:], seq[n_out:] = -1, -1, -1
            ids[:n_out] = rows.out if isinstance(at, slice) else at[rows.out]
            pos[:n_out], seq[:n_out] = rows.pos[rows.out], rows.seq[rows.out]
        elif sampling is not None:
            out = _rows_at(at, rows.out, n)  # each row has an output
        if sampling is not None:
            inputs["sampler.settings"][out] = sampling.settings
            inputs["sampler.rng"][out] = sampling.rng
            inputs["sampler.history"][out] = sampling.history
        return at
