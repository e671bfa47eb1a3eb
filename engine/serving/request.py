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
    """A request in work. tokens: the prompt and what was generated. seq: its number in the KV cache
    while it has rows there."""

    def __init__(self, id: RequestId, request: Request, ids: list[int], seed: int) -> None:
        self.id = id
        self.request = request
        self.tokens = ids
        self.n_prompt = len(ids)
        self.seed = seed
        self.seq: int | None = None
        self.hashes: list[bytes] | None = None  # of the tokens' pages, while it waits
        self.has_sampler = False  # settings and history lie in the engine's arrays
        self.is_over = False

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    def n_left(self, n_ctx: int) -> int:
        """Tokens that may still be generated; the last one is made from a full context."""
        room = n_ctx + 1 - len(self.tokens)
        most = self.request.max_tokens
        return room if most < 0 else min(room, most - self.n_generated)
