"""Probabilities of tokens in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gguflow.engine.serving.request import Token

LEAST = -9999.0  # in place of minus infinity, which JSON has not; OpenAI's own value


def token_bytes(tokenizer: Any, id: int) -> bytes:
    """A token's bytes; none for rows of padding."""
    data: bytes = tokenizer.piece(id) if id < tokenizer.n_vocab else b""
    return data


def chat_logprobs(tokenizer: Any, tokens: Sequence[Token]) -> list[dict[str, Any]]:
    """`logprobs.content` of a chat's answer."""
    return [
        {
            **_entry(tokenizer, t.id, t.logprob),
            "top_logprobs": [_entry(tokenizer, i, p) for i, p in t.top_logprobs],
        }
        for t in tokens
        if t.id is not None and t.logprob is not None
    ]


def _entry(tokenizer: Any, id: int, logprob: float) -> dict[str, Any]:
    data = token_bytes(tokenizer, id)
    return {
        "token": data.decode("utf-8", "replace"), "logprob": max(logprob, LEAST),
        "bytes": list(data),
    }  # fmt: skip


class TextLogprobs:
    """`logprobs` of a completion, whose offsets count from the text's beginning: control tokens,
    which are no part of it, take no room. begins: whether the text is the prompt's, to begin with.
    """

    def __init__(self, tokenizer: Any, begins: bool = False) -> None:
        self._tokenizer = tokenizer
        self._shown = tokenizer.stream(strip_space=begins)
        self._at = 0

    def of(
        self, entries: Sequence[tuple[int, float | None, Sequence[tuple[int, float]]]]
    ) -> dict[str, Any]:
        """(token, its logprob or None, the most likely ones) for each."""
        out: dict[str, list[Any]] = {
            "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []
        }  # fmt: skip
        for id, logprob, top in entries:
            text = self._text(id)
            out["tokens"].append(text)
            out["token_logprobs"].append(None if logprob is None else max(logprob, LEAST))
            ranked = None if logprob is None else {self._text(i): max(p, LEAST) for i, p in top}
            out["top_logprobs"].append(ranked)
            out["text_offset"].append(self._at)
            self._at += len(self._shown.push(id))
        return out

    def _text(self, id: int) -> str:
        data = token_bytes(self._tokenizer, id)
        try:
            return data.decode()
        except UnicodeDecodeError:  # part of a character, as OpenAI writes it
            return "bytes:" + "".join(f"\\x{b:02x}" for b in data)


def entries(tokens: Sequence[Token]) -> list[tuple[int, float | None, Sequence[tuple[int, float]]]]:
    """Generated tokens as `TextLogprobs.of` takes them."""
    return [(t.id, t.logprob, t.top_logprobs) for t in tokens if t.id is not None]
