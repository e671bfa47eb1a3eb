"""A model: its weights on their backends, what runs where, and sessions over it.

model = gguflow.Model.load("model.gguf")
for piece in model.generate("Once upon a time", max_tokens=64):
    print(piece, end="", flush=True)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gguflow.engine.backends.base import find_backend
from gguflow.engine.compile import Plan, summary
from gguflow.engine.devices import Devices
from gguflow.engine.graph import Graph, Role
from gguflow.engine.load import (
    ModelSource,
    Progress,
    WeightStore,
    open_model,
    weight_users,
)
from gguflow.engine.load.offload import needed
from gguflow.engine.options import Options
from gguflow.engine.plan_key import PlanKey
from gguflow.engine.planning import (
    Planner,
    Rewrite,
    Setup,
    cache_size,
    record,
    token_key,
)
from gguflow.engine.profile import Profile
from gguflow.engine.prompt import ContextError, token_ids
from gguflow.engine.resolve import (
    Resolved,
    open_devices,
    prepare,
    resolve,
    resolve_again,
)
from gguflow.engine.sampling import SamplerSettings
from gguflow.engine.serving.buckets import Buckets
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.engine.session import Session
from gguflow.models.base import Architecture, HParams, ModelError
from gguflow.models.batch import CacheSize


class Model:
    """A loaded model: weights on their backends, a tokenizer, and sessions over them."""

    def __init__(self, source: ModelSource, options: Options) -> None:
        prepared = prepare(source, options)  # a wrong option is named before a device is looked for
        make = {"n_threads": options.n_threads or None, "isa": options.isa}
        devices = Devices(lambda kind, i: find_backend(kind, make | {"device": i}), options.device)
        prepared = open_devices(prepared, devices)
        self.backends = devices.backends
        planner = Planner(self.backends)
        self._take(resolve(prepared, planner, self._trial), planner)

    def _take(self, resolved: Resolved, planner: Planner) -> None:
        self.resolved, self._planner = resolved, planner
        self.weights = WeightStore()
        self._session: Session | None = None

    def _of(self, resolved: Resolved) -> Model:
        """Another model over the same backends, which holds no weights yet."""
        other = copy(self)
        other._take(resolved, Planner(self.backends))
        return other

    def _trial(self, setup: Setup, ids: Sequence[int]) -> Iterator[Sequence[np.ndarray]]:
        """Load a model that is set up and run a sequence of tokens: the outputs of every piece."""
        model = self._of(Resolved(setup))
        model.load_weights()
        yield from model.outputs(ids)

    def outputs(self, ids: Sequence[int]) -> Iterator[Sequence[np.ndarray]]:
        """Run a new sequence in pieces of n_ubatch, without logits; yields each piece's outputs,
        those of a rewrite that adds some. The next piece overwrites them."""
        self.check_ids(ids)
        n_ubatch = self.options.n_ubatch
        self.session.rewind(0)
        for i in range(0, len(ids), n_ubatch):
            yield self.session.step(ids[i : i + n_ubatch], "none")

    # -- what was resolved -----------------------------------------------------------------------

    @property
    def setup(self) -> Setup:
        """Weights, options and graph rewrites of what runs."""
        return self.resolved.setup

    @property
    def source(self) -> ModelSource:
        """Where the weights come from."""
        return self.setup.source

    @property
    def options(self) -> Options:
        """Complete: n_ctx and n_ubatch are this model's, overrides hold all placement rules."""
        return self.setup.options

    @property
    def arch(self) -> Architecture:
        """The architecture."""
        return self.source.arch

    @property
    def hp(self) -> HParams:
        """Its hyperparameters."""
        return self.arch.hp

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know: conversions, placement, choices by measurement."""
        return self.resolved.notes

    @property
    def device(self) -> str:
        """The device that layers or neurons were placed on; empty where none was asked for."""
        return self.resolved.device

    @property
    def n_gpu_layers(self) -> int:
        """Layers on the device, the output head counting as one."""
        return self.resolved.n_gpu_layers

    def with_options(self, **changes: Any) -> Model:
        """The same weights and backends run in another way; `changes` are fields of `Options`.

        What is placed is settled when a model is loaded. What a variant needs besides is loaded.
        """
        return self._with(resolve_again(self.resolved, changes))

    def with_rewrite(self, change: Rewrite) -> Model:
        """The same weights and backends, with one more change to every graph."""
        setup = replace(self.setup, rewrites=(*self.setup.rewrites, change))
        return self._with(replace(self.resolved, setup=setup))

    def _with(self, resolved: Resolved) -> Model:
        other = self._of(resolved)
        other.weights = self.weights
        if self.weights.buffers and resolved.setup.source is not self.source:
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
        from gguflow.engine.load.random import random_model  # a file needs no shapes

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

    def largest_plans(self) -> list[Plan]:
        """What a generation runs: a full piece of a prompt, then single tokens."""
        return self._planner.largest(self.setup)

    def load_weights(self, progress: Progress | None = None) -> None:
        """Bring the weights to their backends. Done once, by `load`."""
        for device in self.backends.values():
            if device.memory is not None and not self.weights.buffers:
                b = needed(self.largest_plans(), device)
                device.memory.reserve(b.total, b.scratch)
        plan = self.plan(token_key())
        self.weights.load(
            self.source.weights, plan.leaves(Role.WEIGHT), weight_users(plan),
            lambda t: self.backends[plan.placement.of[t]], progress,
        )  # fmt: skip

    def repacked_bytes(self) -> dict[str, int]:
        """By memory space, the bytes of weights that loading copies into a backend's own layout."""
        plan = self.plan(token_key())
        users = weight_users(plan)
        out: dict[str, int] = {}
        for t in plan.leaves(Role.WEIGHT):
            backend = self.backends[plan.placement.of[t]]
            out[backend.space] = out.get(backend.space, 0) + backend.packed_bytes(
                t, users.get(t, [])
            )
        return out

    def cache_size(self) -> CacheSize:
        """Pages of the KV cache by group of layers."""
        return cache_size(self.setup)

    @property
    def buckets(self) -> Buckets:
        """The sizes that plans are compiled for."""
        return self._planner.buckets(self.setup)

    def graph(self, key: PlanKey) -> Graph:
        """The forward pass over a run's rows as an uncompiled graph."""
        return record(self.setup, key)

    def plan(self, key: PlanKey) -> Plan:
        """Compile a graph; needs no weights in memory. Raises PlacementError."""
        return self._planner.plan(self.setup, key)

    def forecast(self) -> list[str]:
        """Lines that say, before loading, what runs where and the bytes each device will need."""
        lines = summary(self.plan(self.buckets.largest), self.repacked_bytes())
        return [*lines, *self.notes]

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
                f"the prompt has {len(ids)} tokens, the context {self.options.n_ctx}; raise "
                "`n_ctx` or shorten the prompt"
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

    def generate_many(
        self,
        prompts: Iterable[str | Sequence[int]],
        max_tokens: int = -1,
        settings: SamplerSettings | Sequence[SamplerSettings] | None = None,
        stop_at_eog: bool = True,
        n_seqs: int | None = None,
        **sampler: Any,
    ) -> Iterator[tuple[int, str]]:
        """Continue prompts together; yields (number of the prompt, piece of its text) as they come.

        prompts, max_tokens, sampler: as in `generate`, whose text each prompt gets. settings: for
        all, or one for each. n_seqs: how many at once, instead of `Options.n_seqs`. The cache is
        the call's own. Raises ContextError, before anything is generated, when a prompt does not
        fit.

        texts = [""] * len(prompts)
        for i, piece in model.generate_many(prompts, n_seqs=8):
            texts[i] += piece
        """
        tok, prompts = self.tokenizer, list(prompts)
        if settings is None or isinstance(settings, SamplerSettings):
            settings = [settings or SamplerSettings()] * len(prompts)
        if len(settings) != len(prompts):
            raise ValueError(f"{len(settings)} settings for {len(prompts)} prompts")
        engine = Engine(self, n_seqs)
        stop = frozenset(tok.eog_ids) if stop_at_eog else frozenset()
        for prompt, chosen in zip(prompts, settings, strict=True):
            ids = tok.encode(prompt) if isinstance(prompt, str) else token_ids(prompt)
            engine.add(Request(ids, max_tokens, replace(chosen, **sampler), stop))
        streams = [tok.stream() for _ in prompts]
        while engine.has_work:
            for token in engine.step():
                stream = streams[token.request]
                if token.finish == "error":
                    raise ModelError(
                        f"{self.source.path}: the logits after prompt {token.request} are not "
                        "finite"
                    )
                piece = "" if token.id is None or token.finish == "stop" else stream.push(token.id)
                if token.finish is not None:
                    piece += stream.flush()
                if piece:
                    yield token.request, piece

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Logits after every token of a list or array of ids: float32 [n_tokens, n_vocab].

        Raises ContextError for more than the context holds, ValueError for ids that do not exist.
        """
        return self.session.logits(token_ids)
