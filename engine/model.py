"""A model: its weights on their backends, what runs where, and sessions over it.

with gguflow.Model.load("model.gguf") as model:
    for piece in model.generate("Once upon a time", max_tokens=64):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import NDArray

from gguflow.engine.backends.base import Backend, find_backend
from gguflow.engine.dataclass import replace
from gguflow.engine.devices import Devices
from gguflow.engine.generate import (
    Asked,
    GenerateOptions,
    ask,
    compiled,
    embed,
    prompt_ids,
    session_of,
    stream,
    stream_many,
)
from gguflow.engine.graph import Graph, Role
from gguflow.engine.load import ModelSource, WeightStore, keeper_of, open_model, weight_users
from gguflow.engine.load.bundled import bundled_model, draft_path
from gguflow.engine.load.offload import check_limit, reserve
from gguflow.engine.options import OptionFields, Options, draft_options, options_with
from gguflow.engine.piece import Piece
from gguflow.engine.plan_key import PlanKey
from gguflow.engine.planning import (
    Planner,
    Rewrite,
    Setup,
    record,
    token_key,
)
from gguflow.engine.profile import Profile
from gguflow.engine.prompt import Prompt, check_ids, check_length, check_prompt_type
from gguflow.engine.resolve import Resolved, open_devices, prepare, resolve, resolve_again
from gguflow.engine.sampling import SamplerSettings
from gguflow.engine.serving.request import POOLINGS, Pooling
from gguflow.engine.serving.speculation import Speculation, check_draft
from gguflow.engine.session import Session
from gguflow.engine.sized import Sized
from gguflow.models.base import ModelError

if TYPE_CHECKING:
    from gguflow.engine.calls.choice import ToolChoice, Tools
    from gguflow.engine.constraints.vocabulary import Vocabulary
    from gguflow.engine.load import Progress
    from gguflow.engine.streams import Streams
    from gguflow.models.chat import ChatTemplate
    from gguflow.models.tokenizer import Tokenizer


class Model(Sized):
    """A loaded model: weights on their backends, a tokenizer, and sessions over them."""

    def __init__(self, source: ModelSource, options: Options, on: Devices | None = None) -> None:
        """on: another model's devices, or such as are not found by name."""
        prepared = prepare(source, options)  # a wrong option is named before a device is looked for
        make = options.of_backends()
        own = Devices(lambda kind, i: find_backend(kind, make | {"device": i}), options.device)
        devices = self.devices = on or own
        prepared = open_devices(prepared, devices)
        self.backends: dict[str, Backend] = devices.backends
        self.speculation: Speculation | None = None
        planner = Planner(self.backends)
        self._take(resolve(prepared, planner, self._trial), planner)

    def _take(self, resolved: Resolved, planner: Planner) -> None:
        self.resolved, self._planner = resolved, planner
        self.weights = WeightStore()
        self._session: Session | None = None
        self._streams: Streams | None = None
        self._is_closed = False

    def _of(self, resolved: Resolved) -> Model:
        """Another model over the same backends, which holds no weights yet."""
        other = copy(self)
        other._take(resolved, Planner(self.backends))
        return other

    def _trial(self, setup: Setup, ids: Sequence[int]) -> Iterator[Sequence[NDArray[np.generic]]]:
        """Load a model that is set up and run a sequence of tokens: the outputs of every piece."""
        model = self._of(Resolved(setup))
        model.load_weights(keep=False)
        yield from model.outputs(ids)

    def outputs(self, ids: Sequence[int]) -> Iterator[Sequence[NDArray[np.generic]]]:
        """Run a new sequence in pieces of n_ubatch, without logits; yields each piece's outputs,
        those of a rewrite that adds some. The next piece overwrites them."""
        self.check_ids(ids)
        n_ubatch = self.options.n_ubatch
        self.session.rewind(0)
        for i in range(0, len(ids), n_ubatch):
            yield self.session.step(ids[i : i + n_ubatch], "none", prompt=True)

    def with_options(self, **changes: Unpack[OptionFields]) -> Model:
        """The same weights and backends run in another way; `changes` are fields of `Options`.

        What is placed is settled when a model is loaded. What a variant needs besides is loaded.
        """
        return self._with(resolve_again(self.resolved, dict(changes)))

    def with_rewrite(self, change: Rewrite) -> Model:
        """The same weights and backends, with one more change to every graph."""
        setup = replace(self.setup, rewrites=(*self.setup.rewrites, change))
        return self._with(replace(self.resolved, setup=setup))

    def _with(self, resolved: Resolved) -> Model:
        other = self._of(resolved)
        other.weights = self.weights
        if self.weights.buffers and resolved.setup.source is not self.source:
            other.weights = self.weights.fork()
            other.load_weights(keep=False)
        return other

    def speculate(self, speculation: Speculation | None) -> None:
        """How sessions and engines made from now on guess tokens, `generate` included; None for not
        at all. Raises SpeculationError for a draft with another vocabulary."""
        if speculation is not None and speculation.draft is not None:
            check_draft(self, speculation.draft)
        self.speculation = speculation
        self._session = self._streams = None

    def load_draft(
        self,
        path: str | Path | ModelSource,
        progress: Progress | None = None,
        **changes: Unpack[OptionFields],
    ) -> Model:
        """A smaller model to guess with (`Speculation.draft`), on this one's devices and with its
        options, but for `changes`. path: of a file, or "bundled" for the bundled model's. Raises as
        `load` does, MemoryError for one that has no room beside this one, and SpeculationError for
        another vocabulary.

            model.speculate(Speculation(draft=model.load_draft("bundled")))
        """
        source = path if isinstance(path, ModelSource) else open_model(draft_path(path))
        options = draft_options(self.options, self.n_gpu_layers, changes)
        try:
            draft = Model(source, options, self.devices.shared(options.equal_bits))
            check_draft(self, draft)
            # The first step of a round has two rows of each sequence.
            draft.load_weights(progress, True, 2 * options.n_seqs, self.beside_weights())
        except MemoryError as e:
            raise MemoryError(f"{source.path}: no room for a draft: {e}") from None
        return draft

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        options: Options | None = None,
        progress: Progress | None = None,
        **changes: Unpack[OptionFields],
    ) -> Model:
        """Load a GGUF file, the bundled model without one. Keyword arguments change fields of
        `Options`.

        Raises GgufError (a missing file included) or ModelError, each one line that names file and
        field, or MemoryError with the figures.
        """
        if path is not None and not isinstance(path, str | Path):
            raise TypeError(f"path {path!r}: expected a file's name")
        file = bundled_model() if path is None else Path(path).expanduser()
        return cls._loaded(open_model(file), options, progress, changes)

    @classmethod
    def random(
        cls,
        shape: str,
        options: Options | None = None,
        progress: Progress | None = None,
        **changes: Unpack[OptionFields],
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
        changes: OptionFields,
    ) -> Model:
        model = cls(source, options_with(options, changes))
        model.load_weights(progress)
        return model

    def load_weights(
        self,
        progress: Progress | None = None,
        keep: bool = True,
        n_rows: int = 0,
        others: Mapping[str, int] | None = None,
    ) -> None:
        """Bring the weights to their backends. Done once, by `load`. keep: repacked ones are looked
        for, and kept, on the disk, unless `Options.weight_cache` says otherwise; and devices get
        compact ones where `Options.compact_weights` has them. n_rows, others: see
        `compact_rooms`."""
        check_limit(self.largest_plans, self.repacked_bytes)
        plan = self.plan(token_key())
        compact = self.compact_rooms(n_rows, others) if keep and not self.weights.buffers else []
        if not self.weights.buffers:
            reserve(self.largest_plans, self.backends.values())
        keeper = keeper_of(self.source) if keep and self.options.weight_cache else None
        self.weights.load(self.source.weights, plan.leaves(Role.WEIGHT), weight_users(plan),
            lambda t: self.backends[plan.placement.of[t]], progress, keeper, self.source.check,
            self.options.mlock)  # fmt: skip
        self.weights.bring_others(plan, self.source.weights, self.backends)
        self.weights.make_compact(compact, self.options.compact_weights == "on")

    def graph(self, key: PlanKey) -> Graph:
        """The forward pass over a run's rows as an uncompiled graph."""
        return record(self.setup, key)

    @property
    def n_threads(self) -> int:
        """Threads that generation uses."""
        of_backends = (n for b in self.backends.values() if (n := b.n_threads))
        return self.options.n_threads or next(of_backends, 1)

    def check_prompt(self, ids: Sequence[int]) -> None:
        """Raises ContextError for more tokens than the context holds, or than a run where a prompt
        has to be computed at once, ValueError for none and for ids outside the vocabulary."""
        self.check_ids(ids)
        check_length(ids, self.options.n_ctx if self.hp.causal else self.options.n_ubatch)

    def check_ids(self, ids: Sequence[int]) -> None:
        """As `check_prompt`, but none at all are fine."""
        check_ids(ids, self.options.n_ctx, self.hp.n_vocab)

    @cached_property
    def tokenizer(self) -> Tokenizer:
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

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The file's own chat template, or what its vocabulary suggests. Raises ChatTemplateError
        for one that cannot be used."""
        from gguflow.models.chat import ChatTemplate

        return ChatTemplate.for_model(self.source.metadata, self.tokenizer)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer as constraints see it. Raises ImportError without llguidance."""
        from gguflow.engine.constraints.vocabulary import Vocabulary

        return Vocabulary(self.tokenizer, self.hp.n_vocab)

    def close(self) -> None:
        """Give up weights and caches; they are freed when no session or other model has them."""
        self._is_closed = True
        self._session = self._streams = None
        self.weights = WeightStore()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_open(self) -> None:
        """Raises ModelError after `close`."""
        if self._is_closed:
            raise ModelError(f"{self.source.path}: the model was closed")

    # -- text ------------------------------------------------------------------------------------

    def new_session(self, profile: Profile | None = None) -> Session:
        """A session with an empty KV cache of its own; every step is recorded in `profile`."""
        return Session(self, profile)

    @property
    def session(self) -> Session:
        """The session that `generate`, `chat` and `logits` share."""
        if self._session is None:
            self._session = self._beside_itself().new_session()
        return self._session

    def _beside_itself(self) -> Model:
        """The same model, for what this one keeps: in a circle it would outlive its users."""
        other = copy(self)
        other._session = other._streams = None
        return other

    def generate(
        self,
        prompt: Prompt,
        max_tokens: int = -1,
        settings: SamplerSettings | None = None,
        stop_at_eog: bool = True,
        session: Session | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Iterator[Piece]:
        """Continue a prompt; yields pieces of text, which know their tokens (`Piece`).

        prompt: text, or token ids taken as they are. max_tokens: -1 for until the model ends or the
        context is full. session: another one of this model's. options: fields of `SamplerSettings`
        (temperature, ...), stop, logprobs, logit_bias, logits_processor, and the form of the text:
        json_schema, grammar, regex or choices, as in `GenerateOptions`. Raises ContextError when
        the prompt does not fit, TypeError and ValueError for arguments that cannot be used,
        ConstraintError for forms that cannot be had, and what a processor raises.

            for piece in model.generate("Once", max_tokens=20, stop=["end"], logprobs=3, seed=1):
                print(piece, piece.ids, piece.logprobs)
            print(piece.finish_reason, piece.timings)
        """
        asked = self._ask(prompt, max_tokens, settings, stop_at_eog, options)
        return stream(session_of(self, session), compiled(self, asked))

    def astream(
        self,
        prompt: Prompt,
        max_tokens: int = -1,
        settings: SamplerSettings | None = None,
        stop_at_eog: bool = True,
        **options: Unpack[GenerateOptions],
    ) -> AsyncIterator[Piece]:
        """`generate` for asyncio. Streams at the same time are computed together, over a cache of
        their own; leaving one early ends it.

            async for piece in model.astream("Once upon a time", max_tokens=20):
                print(piece, end="")
        """
        asked = self._ask(prompt, max_tokens, settings, stop_at_eog, options)
        return self._aside().generate(asked, partial(compiled, self))

    def _aside(self) -> Streams:
        if self._streams is None:
            from gguflow.engine.streams import Streams  # asyncio is a tenth of a start

            _ = self.tokenizer  # made once, for both
            self._streams = Streams(self._beside_itself())
        return self._streams

    def _ask(
        self, prompt: Prompt, max_tokens: int, settings: SamplerSettings | None, stop_at_eog: bool,
        options: GenerateOptions,
    ) -> Asked:  # fmt: skip
        self.check_open()
        ids = prompt_ids(self, prompt)
        return ask(self, ids, max_tokens, settings, stop_at_eog, **options)

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        max_tokens: int = -1,
        settings: SamplerSettings | None = None,
        *,
        tools: Tools | None = None,
        tool_choice: ToolChoice | None = None,
        template: str | None = None,
        template_variables: Mapping[str, object] | None = None,
        session: Session | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Iterator[Piece]:
        """Answer a conversation in the model's own format; pieces as in `generate`, each of one
        `kind`, and with the last one the `message`: content, reasoning and calls apart.

        messages: mappings with role and content. tools: as OpenAI's API has them; where the
        template has no place for them they are told in the system message. tool_choice: holds the
        model to its form of calls: "auto" (text or calls), "required", or the one function of
        {"type": "function", "function": {"name": ...}}; "none" for no calls; None holds it to
        nothing. template: a well-known format or a jinja2 template, instead of the model's.
        template_variables: more for it to see. options: a form (json_schema, ...) is that of the
        content, after the thoughts. Raises ChatTemplateError, besides what `generate` does.
        """
        from gguflow.engine.chat import turn

        self.check_open()
        t = turn(self, messages, max_tokens, settings, tools, tool_choice, template,
                 template_variables, options)  # fmt: skip
        return t.apart().all(stream(session_of(self, session), t.asked))

    def achat(
        self,
        messages: Sequence[Mapping[str, object]],
        max_tokens: int = -1,
        settings: SamplerSettings | None = None,
        *,
        tools: Tools | None = None,
        tool_choice: ToolChoice | None = None,
        template: str | None = None,
        template_variables: Mapping[str, object] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncIterator[Piece]:
        """`chat` for asyncio, computed together with other streams (`astream`). What cannot be used
        is raised when the first piece is asked for.

            async for piece in model.achat([{"role": "user", "content": "Hello!"}]):
                print(piece, end="")
        """
        from gguflow.engine.chat import turn

        self.check_open()
        make = partial(turn, self, messages, max_tokens, settings, tools, tool_choice, template,
                       template_variables, options)  # fmt: skip
        return self._aside().chat(make)

    def embed(
        self, texts: Prompt | Sequence[Prompt], pooling: Pooling = POOLINGS[0],
        normalize: bool = True,
    ) -> NDArray[np.float32]:  # fmt: skip
        """Vectors of texts: float32 [n, n_embd], from the output of the final norm.

        texts: texts or lists of token ids, or one text. pooling: the mean of all tokens' rows, or
        the last one. normalize: to length one. Raises as `generate` does for prompts.
        """
        self.check_open()
        return embed(self, texts, pooling, normalize)

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        max_tokens: int = -1,
        settings: SamplerSettings | Sequence[SamplerSettings] | None = None,
        stop_at_eog: bool = True,
        n_seqs: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Iterator[tuple[int, Piece]]:
        """Continue prompts together; yields (number of the prompt, piece of its text) as they come.

        prompts, max_tokens, options: as in `generate`, whose text each prompt gets. settings: for
        all, or one for each. n_seqs: how many at once, instead of `Options.n_seqs`. The cache is
        the call's own. Raises ContextError, before anything is generated, when a prompt does not
        fit.
        """
        if isinstance(prompts, str):
            raise TypeError("prompts is a list of prompts, not one")
        check_prompt_type(prompts)
        prompts = list(prompts)
        if settings is None or isinstance(settings, SamplerSettings):
            settings = [settings or SamplerSettings()] * len(prompts)
        if len(settings) != len(prompts):
            raise ValueError(f"{len(settings)} settings for {len(prompts)} prompts")
        asked = [
            compiled(self, self._ask(prompt, max_tokens, chosen, stop_at_eog, options))
            for prompt, chosen in zip(prompts, settings, strict=True)
        ]
        return stream_many(self, asked, n_seqs)

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after every token of a list or array of ids: float32 [n_tokens, n_vocab].

        Raises ContextError for more than the context holds, ValueError for ids that do not exist.
        """
        return self.session.logits(token_ids)
