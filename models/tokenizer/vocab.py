"""The vocabulary of a GGUF file: token texts, types and scores, checked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum

import numpy as np

from gguflow.engine.gguf.errors import show

from .metadata import Metadata

TOKENS = "tokenizer.ggml.tokens"
SCORES = "tokenizer.ggml.scores"
TOKEN_TYPE = "tokenizer.ggml.token_type"

# A vocabulary costs some hundred bytes a token, however short: many empty ones would cost a file of
# nothing gigabytes. The largest there are have a million tokens and a few thousand unused ones.
MOST_TOKENS = 1 << 20
MOST_EMPTY = 1 << 16

_BYTE_TEXT = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type` values, as in sentencepiece's ModelProto plus UNDEFINED."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Tokens that decoding can leave out, and tokens whose text it writes as it stands.
SPECIAL = frozenset((int(TokenType.CONTROL), int(TokenType.UNKNOWN)))
VERBATIM = SPECIAL | {int(TokenType.USER_DEFINED)}


class Vocab:
    """Texts, types and scores by id, and ids by text.

    texts: list [n_vocab]; types: list [n_vocab] of TokenType values; scores: float32 [n_vocab] or
    None; ids: text -> id; stored: the texts as the file has them; byte_values: id -> byte, of the
    BYTE tokens.
    Raises GgufError naming the key for arrays of a wrong type or length, duplicate tokens,
    byte tokens that are not `<0xHH>`, and an empty vocabulary.
    """

    def __init__(self, metadata: Metadata) -> None:
        texts = metadata.strings(TOKENS, most=MOST_TOKENS)
        if not texts:
            raise metadata.error(TOKENS, "no tokens", "at least one")
        self.stored = metadata.string_array(TOKENS)
        if "" in texts:
            self.stored = texts = _name_empty_tokens(metadata, texts)
        _check_utf8(metadata, texts)
        self.texts = texts
        self.ids = dict(zip(texts, range(len(texts)), strict=True))
        if len(self.ids) != len(texts):
            second = next(i for i, text in enumerate(texts) if self.ids[text] != i)
            text = texts[second]
            raise metadata.error(
                f"{TOKENS}[{self.ids[text]}]", f"{show(text)}, as at {second}", "each token once"
            )
        kinds = _read_types(metadata, texts)
        self.types: list[int] = kinds.tolist()
        self.scores = _read_scores(metadata, len(texts))
        self.byte_values = self._read_bytes(metadata, np.flatnonzero(kinds == TokenType.BYTE))

    def __len__(self) -> int:
        return len(self.texts)

    def is_special(self, token: int) -> bool:
        """True for control and unknown tokens: markup, not text."""
        return self.types[token] in SPECIAL

    def of_types(self, types: Iterable[int]) -> list[int]:
        """The tokens of some types."""
        kinds = np.frombuffer(bytes(self.types), np.uint8)
        return np.flatnonzero(np.isin(kinds, [*types])).tolist()

    def _read_bytes(self, metadata: Metadata, tokens: np.ndarray) -> dict[int, int]:
        values: dict[int, int] = {}
        owner: dict[int, int] = {}
        for token in tokens.tolist():
            match = _BYTE_TEXT.fullmatch(self.texts[token])
            if match is None:
                raise metadata.error(
                    f"{TOKENS}[{token}]",
                    f"the byte token {show(self.texts[token])}",
                    "<0x00> to <0xFF>",
                )
            value = int(match[1], 16)
            if value in owner:
                raise metadata.error(
                    f"{TOKENS}[{token}]",
                    f"byte 0x{value:02X}, as at {owner[value]}",
                    "each byte once",
                )
            owner[value] = token
            values[token] = value
        return values


def _name_empty_tokens(metadata: Metadata, texts: list[str]) -> list[str]:
    """Empty texts renamed `[EMPTY_<id>]`, the field's convention: no text may match them."""
    count = texts.count("")
    if count > MOST_EMPTY:
        raise metadata.error(TOKENS, f"{count} empty tokens", f"at most {MOST_EMPTY}")
    import logging

    log = logging.getLogger(__name__)
    log.warning("%s: %d empty tokens, the first at index %d", TOKENS, count, texts.index(""))
    return [text or f"[EMPTY_{i}]" for i, text in enumerate(texts)]


def _check_utf8(metadata: Metadata, texts: list[str]) -> None:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        for i, text in enumerate(texts):
            if any("\ud800" <= char <= "\udfff" for char in text):
                raise metadata.error(f"{TOKENS}[{i}]", repr(text), "UTF-8") from None


def _read_types(metadata: Metadata, texts: list[str]) -> np.ndarray:
    raw = metadata.numbers(TOKEN_TYPE, len(texts), "iu")
    if raw is None:
        types = np.full(len(texts), TokenType.NORMAL, np.int64)
        by_text = [i for i, text in enumerate(texts) if _BYTE_TEXT.fullmatch(text)]
        if len(by_text) == 256:  # a whole set of them is no coincidence
            types[by_text] = TokenType.BYTE
        return types
    bad = np.flatnonzero((raw < min(TokenType)) | (raw > max(TokenType)))
    if bad.size:
        raise metadata.error(f"{TOKEN_TYPE}[{bad[0]}]", f"{raw[bad[0]]}", "0 to 6")
    return raw


def _read_scores(metadata: Metadata, n_vocab: int) -> np.ndarray | None:
    raw = metadata.numbers(SCORES, n_vocab, "fiu")
    if raw is None:
        return None
    bad = np.flatnonzero(np.isnan(raw))
    if bad.size:
        raise metadata.error(f"{SCORES}[{bad[0]}]", "NaN", "a number")
    return raw.astype(np.float32)
