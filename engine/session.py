"""Session: a model in use. Holds the KV cache, the plan cache and the sampler; steps tokens.

`Model` is what programs use: it loads a file and makes sessions.

    model = gguflow.Model.load("model.gguf")
    for piece in model.generate("Once upon a time", max_tokens=64):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from gguflow.engine.ahead import Ahead
from gguflow.engine.backends.base import Backend, Buffer, find_backend
from gguflow.engine.compile import PlacementRules, Plan, PlanOptions, compile_graph, summary
from gguflow.engine.graph import Graph, Role, Tensor
from gguflow.engine.limits import MAX_TOKENS
from gguflow.engine.loader import ModelSource, Progress, WeightStore, open_model, random_model
from gguflow.engine.offload import choose_layers, needed
from gguflow.engine.options import Options
from gguflow.engine.profile import Profile
from gguflow.engine.runtime import BoundPlan, bind
from gguflow.engine.sampling import N_HISTORY, SamplerSettings, SamplerState
from gguflow.engine.sparse.run import SparseRun
from gguflow.engine.sparse.setup import prepare
from gguflow.engine.sparse.split import NeuronSplit
from gguflow.models.base import Batch, ModelError, append_sampler

DEVICE_BACKEND = "cuda"
LEAST_AHEAD = 3  # steps left that are worth starting to run ahead
LEAST_UBATCH = 32  # down to which prompts are cut smaller when a device has memory for little,
WORK_SHARE = 64  # and the part of it that the values of a run may take then
PLAN_CACHE = 8  # plans kept by a model, and lowered ones by a session


class ContextError(ValueError):
    """More tokens than the context holds."""


class Model:
    """A loaded model: weights on their backends, a tokenizer, and sessions over them."""

    def __init__(self, source: ModelSource, options: Options) -> None:
        self.source, self.sparse = prepare(source, options)
        self.arch = self.source.arch
        self.hp = self.arch.hp
        self._most_ubatch = MAX_TOKENS  # lower where memory is short
        self.options = self._completed(options)
        make = {"n_threads": options.n_threads or None, "isa": options.isa,
                "device": options.device}  # fmt: skip
        names = options.backends
        if DEVICE_BACKEND not in names:
            if options.n_gpu_layers or options.vram_budget or options.split:
                names = (DEVICE_BACKEND, *names)
            elif any(b == DEVICE_BACKEND for _, b in options.overrides):
                names = (*names, DEVICE_BACKEND)
        self.backends: dict[str, Backend] = {b: find_backend(b, make) for b in names}
        self.weights = WeightStore()
        self._session: Session | None = None
        self._plans: OrderedDict[tuple[int, str, bool], Plan] = OrderedDict()
        self.n_gpu_layers = 0  # on the device, the output head counting as one
        self.split: NeuronSplit | None = None  # of a ReLU model over the device and the host
        if options.n_gpu_layers:
            self._offload(options.n_gpu_layers)
        if options.vram_budget or options.split:
            self._place_neurons()

    def _offload(self, n_gpu_layers: int) -> None:
        """Turn -ngl into placement rules. Raises MemoryError when it does not fit."""
        mine = self.options.overrides

        def plans_for(overrides: tuple[tuple[str, str], ...]) -> list[Plan]:
            self.options = replace(self.options, overrides=(*mine, *overrides))
            self._plans.clear()
            return self._largest_plans()

        device: Any = self.backends[DEVICE_BACKEND]
        layers, overrides = choose_layers(n_gpu_layers, self.hp.n_layer, device, plans_for)
        plans_for(overrides)
        self.n_gpu_layers = layers
        self.source.notes.append(f"{layers} of {self.hp.n_layer + 1} layers on {device.space}")

    def _place_neurons(self) -> None:
        """Divide a ReLU model between the device and the host by --vram-budget or --split."""
        from gguflow.engine.sparse.device import DevicePlacement
        from gguflow.engine.sparse.identity import model_hash
        from gguflow.engine.sparse.split import read_split

        mine, options, hp = self.options.overrides, self.options, self.hp

        def plan_for(source: ModelSource, run: SparseRun, overrides: Any) -> Plan:
            self.source, self.sparse = source, run
            self.options = replace(self.options, overrides=(*mine, *overrides))
            self._plans.clear()
            return self.plan(self.options.n_ubatch, "last", sample=True)

        assert self.sparse is not None
        host = next(b for name, b in self.backends.items() if name != DEVICE_BACKEND)
        placement = DevicePlacement(
            self.source, self.sparse, self.backends[DEVICE_BACKEND], host, plan_for,
            options.vram_budget, options.n_threads or None,
        )  # fmt: skip
        asked = options.n_ubatch
        while (
            self.options.n_ubatch > LEAST_UBATCH
            and placement.work() > placement.limit // WORK_SHARE
        ):
            self._most_ubatch = self.options.n_ubatch // 2
            self.options = self._completed(self.options)
        if self.options.n_ubatch < asked:
            self.source.notes.append(
                f"prompts in pieces of {self.options.n_ubatch} tokens instead of {asked}, which "
                "leaves the device's memory to weights"
            )
        fixed = None
        if options.split:
            fixed = read_split(options.split, hp.n_layer, hp.n_ff, model_hash(self.source))
        self.split = placement.place(fixed)

    def _largest_plans(self) -> list[Plan]:
        """What a generation runs: a full ubatch, then single tokens."""
        sizes = dict.fromkeys((self.options.n_ubatch, 1))
        return [self.plan(n, "last", sample=True) for n in sizes]

    def _completed(self, options: Options) -> Options:
        n_ctx = options.n_ctx or self.hp.n_ctx_train
        n_ubatch = max(1, min(options.n_ubatch, options.n_batch, n_ctx, self._most_ubatch))
        return replace(options, n_ctx=n_ctx, n_ubatch=n_ubatch)

    def with_options(self, **changes: Any) -> Model:
        """The same weights and backends run in another way; `changes` are fields of `Options`.

        What is placed, and whose predictors, is settled when a model is loaded. Another sparse mode
        loads what it needs besides.
        """
        other = copy(self)
        other.options = self._completed(replace(self.options, **changes))
        other._session, other._plans = None, OrderedDict()
        if self.sparse is not None and changes.keys() & {"sparse", "sparse_threshold"}:
            settled = replace(other.options, predictor="", vram_budget=0, split="")
            other.source, run = prepare(self.source, settled)
            assert run is not None
            other.sparse = replace(run, n_gpu=self.sparse.n_gpu if run.mode != "off" else ())
            if self.weights.buffers:
                other.weights = self.weights.fork()
                other.load_weights()
        return other

    @classmethod
    def load(
        cls,
        path: str | Path,
        options: Options | None = None,
        progress: Progress | None = None,
        **changes: Any,
    ) -> Model:
        """Load a GGUF file. Keyword arguments change fields of `Options`.

        Raises GgufError (a missing file included) or ModelError, each one line that names file and
        field, or MemoryError with the figures.
        """
        return cls._loaded(open_model(path), options, progress, changes)

    @classmethod
    def random(
        cls,
        shape: str,
        options: Options | None = None,
        progress: Progress | None = None,
        **changes: Any,
    ) -> Model:
        """A model of a named shape with random weights, to measure speed: `tinyllama-1.1b:Q4_0`."""
        return cls._loaded(random_model(shape), options, progress, changes)

    @classmethod
    def _loaded(
        cls,
        source: ModelSource,
        options: Options | None,
        progress: Progress | None,
        changes: dict[str, Any],
    ) -> Model:
        model = cls(source, replace(options or Options(), **changes))
        model.load_weights(progress)
        return model

    def load_weights(self, progress: Progress | None = None) -> None:
        """Bring the weights to their backends. Done once, by `load`."""
        device: Any = self.backends.get(DEVICE_BACKEND)
        if hasattr(device, "reserve") and not self.weights.buffers:
            b = needed(self._largest_plans(), device)
            device.reserve(b.total, b.scratch)
        plan = self.plan(1, "last", sample=False)
        self.weights.load(
            self.source.weights, plan.leaves(Role.WEIGHT), _users(plan),
            lambda t: self.backends[plan.placement.of[t]], progress,
        )  # fmt: skip

    def repacked_bytes(self) -> dict[str, int]:
        """By memory space, the bytes of weights that loading copies into a backend's own layout."""
        plan = self.plan(1, "last", sample=False)
        users = _users(plan)
        out: dict[str, int] = {}
        for t in plan.leaves(Role.WEIGHT):
            backend = self.backends[plan.placement.of[t]]
            out[backend.space] = out.get(backend.space, 0) + backend.packed_bytes(
                t, users.get(t, [])
            )
        return out

    def graph(self, n_tokens: int, outputs: str, sample: bool) -> Graph:
        """The forward pass over `n_tokens` as an uncompiled graph."""
        g = Graph()
        o = self.options
        leaves = {s.name: g.weight(s.name, s.dtype, s.shape) for s in self.source.weights.values()}
        batch = Batch(n_tokens, o.n_ctx, o.k_type, o.v_type, outputs, sample, self.sparse)
        logits = self.arch.build(g, leaves, batch)
        used = {s.owner for n in g.nodes for s in n.live_srcs()}
        for t in [t for t in leaves.values() if t not in used]:
            del g.leaves[t.name]  # weights of the forms that do not run
        if outputs != "none":
            g.output(logits)
        if sample:
            g.output(append_sampler(g, logits, N_HISTORY))
        return g

    def plan(self, n_tokens: int, outputs: str, sample: bool) -> Plan:
        """Compile a graph; needs no weights in memory. Raises PlacementError."""
        key = (n_tokens, outputs, sample)
        if key not in self._plans:
            rules = PlacementRules(tuple(self.backends.values()), self.options.overrides)
            self._plans[key] = compile_graph(
                self.graph(*key), PlanOptions(rules, self.options.fuse)
            )
            while len(self._plans) > PLAN_CACHE:
                self._plans.popitem(last=False)
        return self._plans[key]

    def forecast(self) -> list[str]:
        """Lines that say, before loading, what runs where and the bytes each device will need."""
        lines = summary(
            self.plan(self.options.n_ubatch, "last", sample=True), self.repacked_bytes()
        )
        return [*lines, *self.source.notes]

    @property
    def n_threads(self) -> int:
        """Threads that generation uses."""
        if self.options.n_threads:
            return self.options.n_threads
        return next((n for b in self.backends.values() if (n := getattr(b, "n_threads", 0))), 1)

    def check_prompt(self, ids: Sequence[int]) -> None:
        """Raises ContextError for more tokens than the context holds, ValueError for none and for
        ids outside the vocabulary."""
        if not len(ids):
            raise ValueError("the prompt has no tokens")
        self.check_ids(ids)

    def check_ids(self, ids: Sequence[int]) -> None:
        """As `check_prompt`, but none at all are fine."""
        if len(ids) > self.options.n_ctx:
            raise ContextError(
                f"the prompt has {len(ids)} tokens, the context {self.options.n_ctx}; raise -c "
                "or shorten the prompt"
            )
        n_vocab = self.hp.n_vocab
        for t in ids:
            if not 0 <= t < n_vocab:
                raise ValueError(f"token id {t} is outside the vocabulary of {n_vocab}")

    @cached_property
    def tokenizer(self) -> Any:
        """The file's tokenizer. Raises a one-line error when the file holds none that works."""
        from gguflow.models.tokenizer import Tokenizer

        tokenizer = Tokenizer.from_metadata(self.source.metadata, self.source.path)
        if tokenizer.n_vocab > self.hp.n_vocab:  # fewer is common: rows of padding
            raise ModelError(
                f"{self.source.path}: tokenizer.ggml.tokens has {tokenizer.n_vocab} tokens, "
                f"token_embd.weight only {self.hp.n_vocab} rows"
            )
        tokenizer.n_rows = self.hp.n_vocab
        return tokenizer

    def new_session(self, profile: Profile | None = None) -> Session:
        """A session with an empty KV cache of its own; every step is recorded in `profile`."""
        return Session(self, profile)

    @property
    def session(self) -> Session:
        """The session that `generate` and `logits` share."""
        if self._session is None:
            self._session = self.new_session()
        return self._session

    def generate(
        self,
        prompt: str | Sequence[int],
        max_tokens: int = -1,
        settings: SamplerSettings | None = None,
        stop_at_eog: bool = True,
        **sampler: Any,
    ) -> Iterator[str]:
        """Continue a prompt; yields pieces of text, never half a character.

        prompt: text, or token ids taken as they are. max_tokens: -1 for until the model ends or the
        context is full. Keyword arguments are fields of `SamplerSettings` (temperature, ...).
        Raises ContextError when the prompt does not fit.
        """
        tok = self.tokenizer
        ids = tok.encode(prompt) if isinstance(prompt, str) else token_ids(prompt)
        chosen = replace(settings or SamplerSettings(), **sampler)
        stream = tok.stream()
        for t in self.session.generate(ids, max_tokens, chosen, tok.eog_ids if stop_at_eog else ()):
            if piece := stream.push(t):
                yield piece
        if rest := stream.flush():
            yield rest

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Logits after every token of a list or array of ids: float32 [n_tokens, n_vocab].

        Raises ContextError for more than the context holds, ValueError for ids that do not exist.
        """
        return self.session.logits(token_ids)


def token_ids(ids: Iterable[int]) -> list[int]:
    """Token ids as a list of ints. Raises TypeError for what is not one row of whole numbers."""
    try:
        return [index(t) for t in ids]
    except TypeError:
        raise TypeError("token ids must be whole numbers, in a list or a 1-D array") from None


def _users(plan: Plan) -> dict[Tensor, list[Tensor]]:
    """The nodes that read each tensor."""
    users: dict[Tensor, list[Tensor]] = {}
    for n in plan.nodes:
        for s in n.live_srcs():
            users.setdefault(s.owner, []).append(n)
    return users


@dataclass
class Timings:
    """Tokens and seconds of a generation.

    n_prompt: tokens computed, without those the cache held. The first token comes out of the
    prompt's last run, so N generated tokens take N - 1 runs.
    """

    n_prompt: int = 0
    prompt_s: float = 0.0
    n_generated: int = 0
    n_runs: int = 0
    generate_s: float = 0.0

    def add(self, other: Timings) -> None:
        """Add another generation's."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))


class Session:
    """One sequence over a model: its KV cache, the tokens in it, and lowered plans.

    Generations that take turns on one session, on one thread or several, each get their own text;
    every change of turn computes again what their sequences do not share. Give each a session to
    save that.
    """

    def __init__(self, model: Model, profile: Profile | None = None) -> None:
        self.model = model
        self.profile = profile
        self.tokens: list[int] = []  # what the KV cache holds
        self.timings = Timings()
        self._lock = threading.RLock()
        self._turn: SamplerState | None = None  # the generation that was the last to step
        self._ahead: Ahead | None = None  # steps of that generation that are on their way
        self._plans: OrderedDict[tuple[int, str, bool], BoundPlan] = OrderedDict()
        self._states: dict[str, Buffer] = {}
        self._arenas: dict[str, Buffer] = {}
        self._reserve(model.plan(model.options.n_ubatch, "last", sample=True))

    # -- plans -----------------------------------------------------------------------------------

    def _reserve(self, plan: Plan) -> None:
        """Allocate states, and an arena that fits; plans lowered for a smaller one are dropped."""
        by_space = {b.space: b for b in self.model.backends.values()}
        for t in plan.leaves(Role.STATE):
            if t.name not in self._states:
                self._states[t.name] = by_space[plan.space_of(t)].alloc(t.nbytes)
        for space, arena in plan.arenas.items():
            if space not in self._arenas or self._arenas[space].nbytes < arena.nbytes:
                self._arenas[space] = by_space[space].alloc(max(arena.nbytes, 1))
                self._plans.clear()

    def bound_plan(self, n_tokens: int, outputs: str, sample: bool) -> BoundPlan:
        """The lowered plan for this many tokens, from the cache when it is there."""
        key = (n_tokens, outputs, sample)
        if key in self._plans:
            self._plans.move_to_end(key)
            return self._plans[key]
        plan = self.model.plan(*key)
        self._reserve(plan)
        o, w = self.model.options, self.model.weights
        threads = (o.n_threads_batch if n_tokens > 1 else o.n_threads) or o.n_threads or None
        bound = bind(
            plan, self.model.backends, w.buffers, w.packed, self._states, self._arenas, threads
        )
        self._plans[key] = bound
        while len(self._plans) > PLAN_CACHE:
            self._plans.popitem(last=False)
        return bound

    # -- stepping --------------------------------------------------------------------------------

    def step(
        self, ids: Sequence[int], outputs: str = "none", sampler: SamplerState | None = None
    ) -> Sequence[np.ndarray]:
        """Append tokens to the cache in one run of one plan; returns the plan's outputs.

        outputs: "last", "all" or "none" asks for logits; with a sampler the last output is the
        chosen token. The arrays are overwritten by the next run. Raises ContextError when full.
        """
        began = time.perf_counter_ns()
        n_past, n = len(self.tokens), len(ids)
        self._turn = self._ahead = None
        if n_past + n > self.model.options.n_ctx:
            raise ContextError(
                f"{n_past + n} tokens do not fit the context of "
                f"{self.model.options.n_ctx}; raise -c"
            )
        bound = self.bound_plan(n, outputs, sampler is not None)
        self._write(bound, ids, sampler)
        if self.profile is None:
            bound.run()
        else:
            rows, spans = bound.run_timed()
            self.profile.add_step(
                "decode" if n == 1 else "prefill",
                n,
                rows,
                spans,
                time.perf_counter_ns() - began,
                n_past,
            )
        self.tokens.extend(ids)
        return bound.outputs

    def _write(self, bound: BoundPlan, ids: Sequence[int], sampler: SamplerState | None) -> None:
        """A plan's inputs, for tokens that come next."""
        n_past, n, inputs = len(self.tokens), len(ids), bound.inputs
        inputs["tokens"][:] = ids
        inputs["pos"][:] = n_past if n == 1 else np.arange(n_past, n_past + n)
        if sampler is not None:
            inputs["sampler.settings"][:] = sampler.vector
            inputs["sampler.rng"][:] = sampler.rng
            inputs["sampler.history"][:] = sampler.history

    @property
    def is_full(self) -> bool:
        """Whether the context has no room for another token."""
        return len(self.tokens) >= self.model.options.n_ctx

    def rewind(self, n_tokens: int) -> None:
        """Forget all but the first `n_tokens` tokens."""
        self._turn = self._ahead = None
        del self.tokens[n_tokens:]

    def prefill(
        self, ids: Sequence[int], sampler: SamplerState | None, outputs: str = "last"
    ) -> Sequence[np.ndarray]:
        """Append a prompt in ubatches; outputs as in `step`, of the last ubatch only."""
        n_ubatch = self.model.options.n_ubatch
        for i in range(0, len(ids), n_ubatch):
            part = ids[i : i + n_ubatch]
            last = i + n_ubatch >= len(ids)
            result = self.step(part, outputs if last else "none", sampler if last else None)
        return result

    def generate(
        self,
        prompt: Sequence[int],
        max_tokens: int = -1,
        settings: SamplerSettings | None = None,
        stop: Sequence[int] | set[int] = (),
    ) -> Iterator[int]:
        """Yield token ids after `prompt`, which is the whole sequence from its start.

        What the cache already holds of it is reused. Ends at `max_tokens`, at a stop token (not
        yielded), or when the context is full. Raises ContextError when the prompt does not fit.
        """
        ids = token_ids(prompt)
        self.model.check_prompt(ids)
        if max_tokens < -1:
            raise ValueError(f"max_tokens {max_tokens}: expected -1 or more")
        self.timings = timings = Timings()
        if max_tokens == 0:
            return
        sampler = SamplerState(settings or SamplerSettings())
        for t in ids:
            sampler.accept(t)
        clock = time.perf_counter
        began = clock()
        token, timings.n_prompt = self._next(ids, sampler, max_tokens)
        timings.prompt_s = clock() - began
        began = clock()
        n = 0
        while token not in stop:
            n += 1
            # Set before the yield: a caller that stops here leaves true timings behind.
            timings.n_generated = n
            timings.n_runs = n - 1
            timings.generate_s = clock() - began
            yield token
            if n == max_tokens or len(ids) >= self.model.options.n_ctx:
                break
            sampler.accept(token)
            sampler.advance()
            ids.append(token)
            token, _ = self._next(ids, sampler, max_tokens - n)

    def _next(self, ids: Sequence[int], sampler: SamplerState, most: int) -> tuple[int, int]:
        """The token after a sequence, and how many tokens had to be computed: one, unless the
        generation is new or something else used the session since its last step.

        most: tokens the generation may still ask for, this one included; no limit when negative.
        """
        with self._lock:
            if self._turn is sampler and self._runs_ahead(ids, sampler, most):
                assert self._ahead is not None
                self._turn = None  # should this be interrupted
                token = self._ahead.next()
                self.tokens.append(ids[-1])
                self._turn = sampler
                return token, 1
            if self._turn is not sampler:
                keep, most = 0, min(len(self.tokens), len(ids) - 1)
                while keep < most and self.tokens[keep] == ids[keep]:
                    keep += 1
                self.rewind(keep)
            new = ids[len(self.tokens) :]
            result = self.prefill(new, sampler)
            if self._turn is not sampler and not np.isfinite(result[0]).all():
                raise ModelError(
                    f"{self.model.source.path}: the logits are not finite; the weights hold NaN or "
                    "infinity, or values too large to multiply"
                )
            self._turn = sampler
            return int(result[-1][0]), len(new)

    def _runs_ahead(self, ids: Sequence[int], sampler: SamplerState, most: int) -> bool:
        """Whether the device makes the tokens by itself; it is started if it can."""
        if self.profile is not None:  # which has a record for every step
            return False
        if self._ahead is not None and not self._ahead.is_over:
            return True
        n_past = len(self.tokens)
        room = self.model.options.n_ctx - n_past
        most = min(room, most) if most >= 0 else room
        if len(ids) != n_past + 1 or most < LEAST_AHEAD:
            return False
        bound = self.bound_plan(1, "last", True)
        if bound.token_loop is None:
            return False
        self._write(bound, ids[-1:], sampler)
        self._ahead = Ahead(bound.token_loop, n_past, most)
        return True

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits after every token of a new sequence: float32 [n_tokens, n_vocab]."""
        ids = token_ids(ids)
        self.model.check_ids(ids)
        out = [np.zeros((0, self.model.hp.n_vocab), np.float32)]
        n_ubatch = self.model.options.n_ubatch
        with self._lock:
            self.rewind(0)
            for i in range(0, len(ids), n_ubatch):
                out.append(self.step(ids[i : i + n_ubatch], "all")[0].copy())
        return np.concatenate(out)
