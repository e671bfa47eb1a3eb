"""A model: its weights on their backends, what runs where, and sessions over it.

model = gguflow.Model.load("model.gguf")
for piece in model.generate("Once upon a time", max_tokens=64):
    print(piece, end="", flush=True)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gguflow.engine.backends.base import DeviceId, find_backend
from gguflow.engine.compile import PlacementRules, Plan, PlanOptions, compile_graph, summary
from gguflow.engine.devices import Devices
from gguflow.engine.graph import Graph, Role, Tensor
from gguflow.engine.limits import MAX_TOKENS
from gguflow.engine.loader import ModelSource, Progress, WeightStore, open_model, random_model
from gguflow.engine.offload import choose_layers, needed
from gguflow.engine.options import Options
from gguflow.engine.profile import Profile
from gguflow.engine.sampling import N_HISTORY, SamplerSettings
from gguflow.engine.session import PLAN_CACHE, ContextError, Session, token_ids
from gguflow.engine.sparse.run import SparseRun
from gguflow.engine.sparse.setup import prepare
from gguflow.engine.sparse.split import NeuronSplit
from gguflow.models.base import Batch, ModelError, append_sampler

DEVICE_KIND = "cuda"
LEAST_UBATCH = 32  # down to which prompts are cut smaller when a device has memory for little,
WORK_SHARE = 64  # and the part of it that the values of a run may take then


class Model:
    """A loaded model: weights on their backends, a tokenizer, and sessions over them."""

    def __init__(self, source: ModelSource, options: Options) -> None:
        self.source, self.sparse = prepare(source, options)
        self.arch = self.source.arch
        self.hp = self.arch.hp
        self._most_ubatch = MAX_TOKENS  # lower where memory is short
        self.options = self._completed(options)
        make = {"n_threads": options.n_threads or None, "isa": options.isa}
        devices = Devices(lambda kind, i: find_backend(kind, make | {"device": i}), options.device)
        names, self.device = options.backends, ""  # what -ngl, --vram-budget and --split place on
        places = bool(options.n_gpu_layers or options.vram_budget or options.split)
        if places and not any(DeviceId.parse(n).kind == DEVICE_KIND for n in names):
            names = (DEVICE_KIND, *names)
        for name in names:
            devices.open(name)
        if places:
            self.device = devices.open(DEVICE_KIND)
        self.options = replace(self.options, overrides=devices.named(options.overrides))
        self.backends = devices.backends
        self.weights = WeightStore()
        self._session: Session | None = None
        self._plans: OrderedDict[tuple[int, str, bool], Plan] = OrderedDict()
        self.n_gpu_layers = 0  # on the device, the output head counting as one
        self.split: NeuronSplit | None = None  # of a ReLU model over the device and the host
        if options.n_gpu_layers:
            self._offload(options.n_gpu_layers)
        if options.vram_budget or options.split:
            self._place_neurons()
        elif self.sparse is not None and options.sparse == "auto":
            self._choose_form(source, options)

    def _choose_form(self, source: ModelSource, options: Options) -> None:
        """Settle --sparse auto by measurement, once it is known where the layers run."""
        from gguflow.engine.sparse.form import choose_form

        form = choose_form(self, source, options)
        if form is None:
            return
        assert self.sparse is not None
        if form.mode != self.sparse.mode:
            self.source, self.sparse = prepare(source, replace(options, sparse=form.mode))
            if self.n_gpu_layers:
                self._note_offload()
            self._plans.clear()
        self.source.notes.append(form.describe())

    def _offload(self, n_gpu_layers: int) -> None:
        """Turn -ngl into placement rules. Raises MemoryError when it does not fit."""
        mine = self.options.overrides

        def plans_for(overrides: tuple[tuple[str, str], ...]) -> list[Plan]:
            self.options = replace(self.options, overrides=(*mine, *overrides))
            self._plans.clear()
            return self._largest_plans()

        device = self.backends[self.device]
        layers, overrides = choose_layers(n_gpu_layers, self.hp.n_layer, device, plans_for)
        plans_for(overrides)
        self.n_gpu_layers = layers
        self._note_offload()

    def _note_offload(self) -> None:
        space = self.backends[self.device].space
        self.source.notes.append(f"{self.n_gpu_layers} of {self.hp.n_layer + 1} layers on {space}")

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
        host = next(b for name, b in self.backends.items() if name != self.device)
        placement = DevicePlacement(
            self.source, self.sparse, self.backends[self.device], host, plan_for,
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
        for device in self.backends.values():
            if device.memory is not None and not self.weights.buffers:
                b = needed(self._largest_plans(), device)
                device.memory.reserve(b.total, b.scratch)
        plan = self.plan(1, "last", sample=True)
        self.weights.load(
            self.source.weights, plan.leaves(Role.WEIGHT), weight_users(plan),
            lambda t: self.backends[plan.placement.of[t]], progress,
        )  # fmt: skip

    def repacked_bytes(self) -> dict[str, int]:
        """By memory space, the bytes of weights that loading copies into a backend's own layout."""
        plan = self.plan(1, "last", sample=True)
        users = weight_users(plan)
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
        g.drop_unused_weights()  # those of the forms that do not run
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
        return next((n for b in self.backends.values() if (n := b.n_threads)), 1)

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


def weight_users(plan: Plan) -> dict[Tensor, list[Tensor]]:
    """The nodes that read each tensor."""
    users: dict[Tensor, list[Tensor]] = {}
    for n in plan.nodes:
        for s in n.live_srcs():
            users.setdefault(s.owner, []).append(n)
    return users
