"""What an engine is asked for, what it answers, and what it remembers of a request."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from gguflow.engine.sampling import SamplerSettings

RequestId = int
Finish = Literal["stop", "length", "cancel", "error"]


@dataclass(frozen=True)
class Request:
    """A prompt to continue.

    ids: the prompt's tokens. max_tokens: -1 for until a stop token comes or the context is full.
    stop: ids that end it. salt: what its KV rows depend on besides the tokens, an adapter for
    instance; only requests with the same salt share them.
    """

    ids: Sequence[int]
    max_tokens: int = -1
    settings: SamplerSettings = field(default_factory=SamplerSettings)
    stop: Set[int] = frozenset()
    salt: bytes = b""


@dataclass(frozen=True)
class Token:
    """A request's next token. index: from 0 on.

    finish: why no other follows; None while there will be one. After "stop" the token is the one
    that stopped it and no part of the text. After "cancel", "error" (logits that are not finite)
    and for a request of no tokens, `id` is None.
    """

    request: RequestId
    id: int | None
    index: int
    finish: Finish | None = None


class Job:
    """A request in work.

    tokens: the prompt and what was generated. n_most: how many there may be; the last one is made
    from a full context. seq: its number in the KV cache while it has rows there, n_rows of them.
    """

    def __init__(
        self, id: RequestId, request: Request, ids: list[int], seed: int, n_ctx: int
    ) -> None:
        self.id = id
        self.request = request
        self.tokens = ids
        self.n_prompt = len(ids)
        self.n_most = n_ctx + 1
        if request.max_tokens >= 0:
            self.n_most = min(self.n_most, len(ids) + request.max_tokens)
        self.seed = seed
        self.seq: int | None = None
        self.n_rows = 0
        self.hashes: list[bytes] | None = None  # of the tokens' pages, while it waits
        self.has_sampler = False  # settings and history lie in the engine's arrays
        self.is_over = False

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def n_new(self) -> int:
        """Tokens whose rows are missing."""
        return len(self.tokens) - self.n_rows

    @property
    def generates(self) -> bool:
        """Whether all that is missing is the row of a generated token."""
        return len(self.tokens) - self.n_rows == 1 and len(self.tokens) > self.n_prompt
