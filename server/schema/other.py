"""The bodies of /v1/embeddings, /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .base import Body
from .chat import Message, Prompt
from .sampling import TokenId

ModelName = Annotated[str, Field(max_length=1024)]


class EmbeddingsBody(Body):
    """Texts, or lists of token ids, to embed."""

    input: Prompt
    model: ModelName | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    pooling: Literal["mean", "last"] | None = None
    normalize: bool | None = None
    user: Annotated[str, Field(max_length=1024)] | None = None


class TokenizeBody(Body):
    """Text to tokenize: as llama-server (`content`) or vLLM (`prompt`, `messages`) call it."""

    content: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)] | None = None
    model: ModelName | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(Body):
    """Token ids to turn into text."""

    tokens: Annotated[list[TokenId], Field(max_length=4_000_000)]
    model: ModelName | None = None
