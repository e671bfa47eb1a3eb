"""Runs batches of a model's sequences: states, arenas, lowered plans, and the inputs of a plan."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gguflow.engine.adapters import factors_of, input_name
from gguflow.engine.backends.base import Backend, Buffer, Live
from gguflow.engine.compile import Plan
from gguflow.engine.compile.batch_rows import OUTPUTS, TOKENS
from gguflow.engine.compile.types import HOST_SPACE
from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Role
from gguflow.engine.mapped import hold, n_lost
from gguflow.engine.plan_key import PAGE, STATES, PlanKey
from gguflow.engine.profile import Profile
from gguflow.engine.runtime import BoundPlan, Together, Workspace, bind
from gguflow.engine.runtime.arrays import Arrays
from gguflow.models.base import Architecture, ModelError
from gguflow.models.batch import CacheLayer, StateLayer

from .buckets import SPARE
from .kv import Group, KvCache
from .rows import Rows

if TYPE_CHECKING:
    from gguflow.engine.model import Model

LOOK_NS = 20_000_000  # between two looks at whether files were written to
PLAN_CACHE = 96  # lowered plans that a runner keeps: some 10 MiB each, of a large model
# Of one generated token, by whether it has an output and whether the next one is chosen: made once,
# for checking a key takes longer than looking a plan up.
_ONE = {
    (output, sample): PlanKey(1, 0, 1, int(output), sample)
    for output, sample in ((False, False), (True, False), (True, True))
}


class Sampling(NamedTuple):
    """The `sample` op's operands for n outputs: f32 [n, 8], i64 [n, 2], i32 [n, N_HISTORY]."""

    settings: np.ndarray
    rng: np.ndarray
    history: np.ndarray


class Results(Arrays):
    """A run's outputs, overwritten by the next one: of each the rows that were asked for, in their
    order. Logits are f32 [n_out, n_vocab]; tokens, when sampled, the last, i32 [n_out]."""

    def __init__(self, bound: BoundPlan, key: PlanKey, rows: Rows, at: np.ndarray | slice) -> None:
        self._outputs, self._key, self._at = bound.outputs, key, at
        self._where = slice(len(rows.out)) if key.picks else _rows_at(at, rows.out, rows.n_tokens)

    def __len__(self) -> int:
        return len(self._outputs)

    def row(self, index: int, i: int) -> np.ndarray:
        """Row i of an output of the rows that were asked for, without fetching the others."""
        where = self._where  # a slice of the first rows, or which
        return self._outputs.row(index, i if isinstance(where, slice) else int(where[i]))

    def _fetch(self, index: int) -> np.ndarray:
        x = self._outputs[index]
        # Values from inside a model have a row a token up to where outputs are chosen.
        return x[self._where if len(x) == self._key.n_out else self._at]


def _live(rows: Rows, at: np.ndarray | slice) -> Live | None:
    """The rows that count, where those of a plan's that do not are all at its end."""
    if not isinstance(at, slice):
        return None
    return {TOKENS: rows.n_tokens, OUTPUTS: max(1, len(rows.out))}


def _rows_at(at: np.ndarray | slice, rows: np.ndarray, n: int) -> np.ndarray | slice:
    """Where rows of the run's n lie in the plan: a slice from 0 on where it is all of the first."""
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
        if layer is None or layer.group != group:
            continue
        if isinstance(layer, StateLayer):
            names = [f"ssm.{i}.{name}" for name in layer.sizes]
        else:
            names = [f"kv.{i}.{x}" for x, n in (("k", layer.n_k), ("v", layer.n_v)) if n]
        # A part or a copy for device k is called `<name>@<k>`.
        for state in (s for name, s in states.items() if name.partition("@")[0] in names):
            n = state.nbytes // n_pages[group]
            state.move(target * n, source * n, n)


class Runner:
    """A model's KV cache and the plans that fill it. One run at a time.

    Every run is recorded in `profile`. n_verify: as in `Buckets`.
    """

    def __init__(self, model: Model, profile: Profile | None = None, n_verify: int = 0) -> None:
        self.model = model
        self.profile = profile
        self.buckets = replace(model.buckets, n_verify=n_verify)
        backends = model.backends.values()
        self.is_host = all(b.space == HOST_SPACE or b.on_host for b in backends)
        self.n_pieces = self._n_pieces()
        self._pid = os.getpid()
        self._n_lost, self._looks_at = n_lost(), 0
        size = model.cache_size()
        layers = [model.arch.cache(i) for i in range(model.hp.n_layer)]
        windows = {layer.group: layer.window for layer in layers if isinstance(layer, CacheLayer)}
        self.states: dict[str, Buffer] = {}  # by name, the rows of every layer
        self.kv = KvCache(
            {name: Group(size.n_pages[name], window) for name, window in windows.items()},
            model.options.n_seqs,
            size.n_entries,
            partial(copy_page, model.arch, size.n_pages, self.states),
            n_states=size.n_pages.get(STATES, 0),
            share_generated=self.is_host,
            whole_prompts=not model.hp.causal,
        )
        self._lora = np.array([factor for _, factor in model.options.lora], np.float32)
        self._arenas: dict[str, Buffer] = {}
        self._workspace = Workspace()
        self._plans: OrderedDict[tuple[PlanKey, int], BoundPlan] = OrderedDict()
        self._lowered = [self._plans]  # and those of other forms, over the same arenas
        self._reserve(model.plan(self.buckets.largest))
        if n_verify > 1:
            self._reserve(model.plan(self.buckets.verifying))

    def over(self, model: Model) -> Runner:
        """The plans of another form of the model over the same cache; one of the two at a time."""
        other = copy(self)
        other.model, other._plans = model, OrderedDict()
        self._lowered.append(other._plans)
        return other

    # -- plans -----------------------------------------------------------------------------------

    def _reserve(self, plan: Plan) -> None:
        """Allocate states, and an arena and a workspace that fit; plans lowered for smaller ones
        are dropped."""
        by_space: dict[str, Backend] = {b.space: b for b in self.model.backends.values()}
        for t in plan.leaves(Role.STATE):
            if t.name not in self.states:
                self.states[t.name] = by_space[plan.space_of(t)].alloc(t.nbytes)
        is_larger = self._workspace.reserve(plan, self.model.backends)
        for space, arena in plan.arenas.items():
            if space not in self._arenas or self._arenas[space].nbytes < arena.nbytes:
                self._arenas[space] = by_space[space].alloc(max(arena.nbytes, 1))
                is_larger = True
        for plans in self._lowered if is_larger else ():
            plans.clear()

    def _n_pieces(self) -> int:
        """Runs that a prompt may be cut into at a time: see `Options.n_pieces`."""
        o = self.model.options
        if (
            not self.model.hp.causal
            or o.n_seqs > o.n_ubatch
            or not all(
                (links := self.model.backends[name].links) and links.alloc_pinned
                for name in o.devices
            )
        ):
            return 1
        return o.n_pieces

    def plan(self, key: PlanKey, copy: int = 0) -> BoundPlan:
        """The lowered plan of these sizes, from the cache when it is there. copy: which, of those
        that may be on their way at the same time."""
        if not self.is_host and os.getpid() != self._pid:
            raise ModelError(
                f"{self.model.source.path}: a model on a device cannot be used in a process made "
                "by fork: load it there, or start the process with spawn"
            )
        at = key, copy
        bound = self._plans.get(at)
        if bound is not None:
            self._plans.move_to_end(at)
            return bound
        bound = self.lowered(key)
        self._plans[at] = bound
        while len(self._plans) > PLAN_CACHE:
            self._plans.popitem(last=False)
        return bound

    def has_plan(self, key: PlanKey) -> bool:
        """Whether a plan is lowered already."""
        return (key, 0) in self._plans

    def make_ready(self, key: PlanKey) -> None:
        """Have a plan lowered, its kernels loaded and what a device replays recorded, by runs of
        rows that are not there: they read and write nothing of the cache."""
        bound = self.plan(key)
        if self.is_host:
            return
        for name, x in bound.inputs.items():
            x[:] = 0 if name.startswith("sampler.") else -1
        if (loop := bound.token_loop) is not None:
            loop.start()
            return
        for _ in range(2):  # the first one launches op by op
            bound.run()

    def lowered(self, key: PlanKey) -> BoundPlan:
        """A new one, for who keeps it."""
        plan = self.model.plan(key)
        self._reserve(plan)
        o, w = self.model.options, self.model.weights
        threads = (o.n_threads_batch if key.n_tokens > 1 else o.n_threads) or o.n_threads or None
        return bind(
            plan, self.model.backends, w.buffers, w.packed, self.states, self._arenas, threads,
            self._workspace,
        )  # fmt: skip

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
        self._go(bound, _live(rows, at), kind, rows.n_tokens, int(rows.pos[0]), began)
        return Results(bound, key, rows, at)

    def run_all(
        self, runs: Sequence[Rows], sampling: Sampling | None = None, every: bool = False
    ) -> Results:
        """Runs after each other, of which the last alone has outputs: its results. Where devices
        hold layers in turn a device begins the next one as soon as it is done with its layers; a
        profile records them in turn."""
        *first, last = runs
        if not first or self.n_pieces == 1 or self.profile is not None:
            for rows in first:
                self.run(rows)
            return self.run(last, sampling, every)
        began = time.perf_counter_ns()
        keys = [self.buckets.piece(rows.n_tokens) for rows in first]
        keys.append(self._key(last, sampling is not None, every))
        n_copies = self.model.options.n_stages + SPARE
        bound = [self.plan(key, i % n_copies) for i, key in enumerate(keys)]
        for b in bound:
            b.prepare()
        self._hold_files(began)
        with Together(n_copies) as together:
            for b, key, rows in zip(bound, keys, runs, strict=True):
                together.make_room()
                at = self._write(b, key, rows, sampling if rows is last else None)
                together.begin(b, _live(rows, at))
        self._check_files(began)
        return Results(bound[-1], keys[-1], last, at)

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
        bound = self.plan(_ONE[output or self.buckets.equal, sampling is not None])
        inputs, pos = bound.inputs, self.kv.length(seq)
        inputs["tokens"][0], inputs["pos"][0], inputs["seq"][0] = token, pos, 0
        page, row = divmod(pos, PAGE)
        for group, tables in self.kv.tables.items():
            inputs["rows." + group][0] = int(tables[seq, page]) * PAGE + row
            table = inputs.get("table." + group)
            if table is not None:
                table[0] = tables[seq]
        if len(self._lora):
            zero = np.zeros(1, int)
            rows = Rows(zero, zero, zero, np.array([seq]), 1, zero)
            self._write_adapters(inputs, rows, slice(1))
        if self.kv.states is not None:
            inputs[f"rows.{STATES}"][0] = self.kv.states.slot(seq)
        if sampling is not None:
            inputs["sampler.settings"][:] = sampling.settings
            inputs["sampler.rng"][:] = sampling.rng
            inputs["sampler.history"][:] = sampling.history
        return bound

    def _go(
        self, bound: BoundPlan, live: Live | None, kind: str, n: int, n_past: int, began: int
    ) -> None:
        self._hold_files(began)
        if self.profile is None:
            bound.run(live)
            self._check_files(began)
            return
        ops, spans = bound.run_timed(live)
        wall = time.perf_counter_ns() - began
        self._check_files(began)
        self.profile.add_step(kind, n, ops, spans, wall, n_past)

    def _hold_files(self, now: int) -> None:
        """See that bytes that are missing are noticed, where nobody has looked for a moment."""
        if now > self._looks_at:
            hold()

    def _check_files(self, now: int) -> None:
        """Raises GgufError where the model's file is no longer what was loaded. Missing bytes are
        noticed after the run that read them, others' writes within a moment."""
        if n_lost() != self._n_lost or now > self._looks_at:
            self._n_lost, self._looks_at = n_lost(), now + LOOK_NS
            for check in self.model.weights.checks:
                check()

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
        if gap > 0 and key.n_chunk:
            at = np.arange(n)
            at[rows.n_single :] += gap
        padded = n < key.n_tokens
        sees = rows.pos if rows.sees is None else rows.sees
        named = {"tokens": rows.tokens, "pos": rows.pos, "seq": rows.seq, "sees": sees}
        for name, values in named.items():
            x = inputs.get(name)
            if x is None:  # models that read in one direction need not be told what rows see
                continue
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
        if self.kv.states is not None:
            x = inputs[f"rows.{STATES}"]
            if padded:
                x[:] = -1
            x[at] = self.kv.slots(rows.seqs)[rows.seq]
        n_out = len(rows.out)
        out: np.ndarray | slice = slice(n_out)
        if key.picks:
            ids = rows.out if isinstance(at, slice) else at[rows.out]
            named = {"ids": ids, "pos": rows.pos[rows.out], "seq": rows.seq[rows.out],
                     "sees": sees[rows.out]}  # fmt: skip
            for name, values in named.items():
                picked = inputs.get(f"out.{name}")
                if picked is not None:  # only attention asks where its rows stand
                    picked[:n_out], picked[n_out:] = values, -1
        elif sampling is not None:
            out = _rows_at(at, rows.out, n)  # each row has an output
        if len(self._lora):
            self._write_adapters(inputs, rows, at)
        if sampling is not None:
            inputs["sampler.settings"][out] = sampling.settings
            inputs["sampler.rng"][out] = sampling.rng
            inputs["sampler.history"][out] = sampling.history
        return at

    def _write_adapters(
        self, inputs: Mapping[str, np.ndarray], rows: Rows, at: np.ndarray | slice
    ) -> None:
        """Every row's factors of the adapters, by its sequence, and of rows with an output too."""
        each = [factors_of(self.kv.salt(seq), self._lora) for seq in rows.seqs.tolist()]
        factors = np.stack(each)[rows.seq]
        for i in range(len(self._lora)):
            for outputs, to, values in (
                (False, at, factors[:, i]),
                (True, slice(len(rows.out)), factors[rows.out, i]),
            ):
                x = inputs.get(input_name(i, outputs))  # an adapter may change nothing there
                if x is not None:
                    x[to, 0] = values
