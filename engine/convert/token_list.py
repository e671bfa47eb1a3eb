"""The list of tokens of a checkpoint on its way to a file: texts, types, scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gguflow.models.tokenizer.vocab import MOST_TOKENS

from .checkpoint import Checkpoint, ConvertError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


class Tokens:
    """Texts, types and scores of n tokens, by id; those that nothing names are unused."""

    def __init__(self, n: int, score: float) -> None:
        if not 0 <= n <= MOST_TOKENS:
            raise ConvertError(f"vocab_size is {n}, expected 0 to {MOST_TOKENS}")
        self.texts = [f"[PAD{i}]" for i in range(n)]
        self.types = [UNUSED] * n
        self.scores = [score] * n

    def put(self, i: int, text: str, kind: int, score: float = 0.0) -> None:
        if not 0 <= i < MOST_TOKENS:
            raise ConvertError(f"token {text!r} has the id {i}, expected 0 to {MOST_TOKENS - 1}")
        while len(self.texts) <= i:
            self.texts.append(f"[PAD{len(self.texts)}]")
            self.types.append(UNUSED)
            self.scores.append(0.0)
        self.texts[i], self.types[i], self.scores[i] = text, kind, score

    def keys(self, model: str, pre: str, scored: bool) -> dict[str, Any]:
        scores = {"tokenizer.ggml.scores": np.array(self.scores, np.float32)} if scored else {}
        return {
            "tokenizer.ggml.model": model,
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": self.texts,
            **scores,
            "tokenizer.ggml.token_type": np.array(self.types, np.int32),
        }


def id_of(source: Checkpoint, text: Any, i: Any) -> int:
    if type(i) is not int or not isinstance(text, str):
        raise ConvertError(f"{source.path}: token {text!r} has the id {i!r}")
    return i


def added(source: Checkpoint) -> list[tuple[int, Mapping[str, Any]]]:
    """Tokens beside those of the model, by id: of tokenizer.json, else of tokenizer_config.json."""
    listed = source.json("tokenizer.json", needed=False).get("added_tokens")
    if not isinstance(listed, list) or not listed:
        by_id = source.json("tokenizer_config.json", needed=False).get("added_tokens_decoder")
        by_id = by_id if isinstance(by_id, dict) else {}
        listed = [
            {"id": int(i), **t} for i, t in by_id.items() if i.isdecimal() and isinstance(t, dict)
        ]
    if not all(isinstance(t, dict) for t in listed):
        raise ConvertError(f"{source.path}: added_tokens are no list of tokens")
    return [(id_of(source, t.get("content"), t.get("id")), t) for t in listed]


# Tokens that some checkpoints forget to call special, though nobody means their text.
_MARKUP = ("<|", "<｜", "<s>", "</s>", "<pad>", "<mask>", "<bos>", "<eos>", "<start_of_turn>",
           "<end_of_turn>")  # fmt: skip


def kind_of(token: Mapping[str, Any]) -> int:
    text = token["content"]
    marks = text.startswith(_MARKUP) and text.endswith(">")
    return CONTROL if token.get("special") or marks else USER_DEFINED
