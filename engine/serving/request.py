"""What an engine is asked for, what it answers, and what it remembers of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from gguflow.engine.adapters import salted
from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.sampling import SamplerSettings

if TYPE_CHECKING:
    from .host_sampling import HostSampler

RequestId = int
Finish = Literal["stop", "length", "cancel", "error", "embedding"]
Pooling = Literal["mean", "last"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
Ranked = tuple[tuple[int, float], ...]  # tokens and the logarithms of their probabilities


class LogitsProcessor(Protocol):
    """Changes the logits of a request's next token."""

    def __call__(self, ids: Sequence[int], logits: NDArray[np.float32]) -> None:
        """ids: the prompt and what was generated, not to be changed. logits: f32 [n_vocab], to be
        changed in place; -inf for tokens that may not come. Called once a token, in order, on the
        thread that steps. What it raises ends the request."""


class LogitsError(ValueError):
    """No token can follow: the logits are not finite."""


@dataclass(frozen=True)
class Request:
    """A prompt to continue.

    ids: the prompt's tokens. max_tokens: -1 for until a stop token comes or the context is full.
    stop: ids that end it. salt: what its KV rows depend on besides the tokens, an adapter for
    instance; only requests with the same salt share them. lora: factors of the model's adapters,
    one each; None for those that it was loaded with.
    logprobs: how many of the most likely tokens to give with every token, besides its own
    probability; None for neither. prompt_logprobs: the same for the prompt's tokens, with the first
    one. logit_bias: added to the logits of some tokens. processor: changes logits after that.
    """

    ids: Sequence[int]
    max_tokens: int = -1
    settings: SamplerSettings = field(default_factory=SamplerSettings)
    stop: Set[int] = frozenset()
    salt: bytes = b""
    lora: Sequence[float] | None = None
    logprobs: int | None = None
    prompt_logprobs: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    processor: LogitsProcessor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the `sample` op does all that is asked for."""
        asks = self.logprobs is not None or self.prompt_logprobs or self.processor is not None
        return not asks and not self.logit_bias and self.settings.is_plain

    @property
    def cache_salt(self) -> bytes:
        """All that its KV rows depend on besides the tokens."""
        return salted(self.lora, self.salt)


@dataclass(frozen=True)
class EmbedRequest:
    """A text to make one vector of, from the output of the final norm.

    ids: its tokens. pooling: the mean of all rows, or the last one. lora: as in `Request`.
    """

    ids: Sequence[int]
    pooling: Pooling = POOLINGS[0]
    lora: Sequence[float] | None = None


@dataclass(frozen=True)
class Token:
    """A request's next token. index: from 0 on.

    finish: why no other follows; None while there will be one. After "stop" the token is the one
    that stopped it and no part of the text. After "cancel", "error" and "embedding", and for a
    request of no tokens, `id` is None.
    logprob: the logarithm of its probability before any setting changed it; top_logprobs: the most
    likely tokens, most likely first. prompt_logprobs: with the first token, for each of the
    prompt's its own (None for the first) and the most likely ones in its place.
    error: what a processor raised, or a LogitsError. embedding: f32 [n_embd], not normalized.
    n_cached: with the first token, how many of the prompt's were in the cache already.
    """

    request: RequestId
    id: int | None
    index: int
    finish: Finish | None = None
    logprob: float | None = None
    top_logprobs: Ranked = ()
    prompt_logprobs: tuple[tuple[float | None, Ranked], ...] = ()
    error: Exception | None = field(default=None, compare=False)
    embedding: NDArray[np.float32] | None = field(default=None, compare=False)
    n_cached: int = field(default=0, compare=False)

    @classmethod
    def plain(cls, request: RequestId, id: int, index: int) -> Token:
        """One of which nothing else is known. Most are, and a constructor that sets every field
        takes longer than all else that a step does for a token."""
        token = object.__new__(cls)
        token.__dict__.update(request=request, id=id, index=index)
        return token


class Job:
    """A request in work.

    tokens: the prompt and what was generated. n_most: how many there may be; the last one is made
    from a full context. seq: its number in the KV cache while it has rows there, n_rows of them.
    host: chooses its tokens where the `sample` op cannot. salt: of its pages. prompt_logprobs: of
    its prompt's tokens, by place, as far as they are known; most_rows: that a run may compute.
    apart: whether generated tokens may not be computed as a prompt's are, whose bits differ.
    """

    def __init__(
        self, id: RequestId, request: Request, ids: list[int], seed: int, n_ctx: int,
        apart: bool = False,
    ) -> None:  # fmt: skip
        self.id = id
        self.request = request
        self.tokens = ids
        self.n_prompt = len(ids)
        self.apart = apart
        self.n_most = n_ctx + 1
        if request.max_tokens >= 0:
            self.n_most = min(self.n_most, len(ids) + request.max_tokens)
        self.seed = seed
        self.seq: int | None = None
        self.n_rows = 0
        self.n_found = -1  # rows that were there when it was let in for the first time
        self.hashes: list[bytes] | None = None  # of the tokens' pages, while it waits
        self.has_sampler = False  # settings and history lie in the engine's arrays
        self.is_over = False
        self.host: HostSampler | None = None
        self.salt = request.cache_salt
        self.prompt_logprobs: dict[int, tuple[float, Ranked]] = {}
        self.most_rows = n_ctx
        if request.prompt_logprobs:  # no row may be found: each is needed
            self.salt += b"prompt_logprobs" + id.to_bytes(8, "little")

    @property
    def place(self) -> int:
        """`seq`, of one that has rows."""
        assert self.seq is not None
        return self.seq

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def n_new(self) -> int:
        """Tokens whose rows are missing."""
        return len(self.tokens) - self.n_rows

    @property
    def prompt(self) -> list[int]:
        """What is computed as prompts are: once it has given its pages back, what it has generated
        too, where the bits are the same."""
        return self.tokens[: self.n_prompt] if self.apart else self.tokens

    @property
    def n_next(self) -> int:
        """Rows that the next run may compute as a prompt's."""
        n = self.n_prompt - self.n_rows if self.apart else self.n_new
        return min(n, self.most_rows)

    @property
    def wants_rows(self) -> bool:
        """Whether each row of its prompt is needed."""
        return self.request.prompt_logprobs and not self.n_generated

    @property
    def generates(self) -> bool:
        """Whether all that is missing is the row of a generated token; of several, which it had
        before it gave its pages back, where they stand apart."""
        n = len(self.tokens)
        return (
            n > self.n_prompt
            and n - self.n_rows == 1
            or (self.apart and self.n_rows >= self.n_prompt)
        )
