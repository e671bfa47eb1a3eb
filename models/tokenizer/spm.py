"""SPM tokenizers (`tokenizer.ggml.model` = "llama").

A prompt is merged here. Where there is much text the sentencepiece library does it, to the same
tokens: to import it and to hand it a vocabulary takes longer than a page of text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from gguflow.engine.room import check_room

from . import model_proto
from .metadata import Metadata
from .pairs import merged
from .pieces import PIECE, in_pieces
from .special import Defaults
from .vocab import SCORES, TOKENS, VERBATIM, TokenType, Vocab

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

# What the library takes, measured with some room: of its own, and for a token.
_LIBRARY, _EACH = 16 << 20, 512
_TEXT = 64  # for a character of a text, while it is encoded
_BEFORE_SPACE = re.compile("[^ \u2581](?= )")
# Characters merged in Python, at 4 us each, before the library is worth its start: 6 ms and 1 us a
# token.
_FEW, _TOKENS = 2_000, 4
_MARKUP = frozenset((TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE))  # no text becomes these


class SpmModel:
    """Greedy merges by score over UTF-8 characters, with byte fallback.

    Differs from a plain sentencepiece model where llama.cpp does: text is not normalized, and the
    space prefix is added to every fragment that starts the text or follows a special token.
    prefix_space: whether it is added at all.
    """

    def __init__(self, metadata: Metadata, vocab: Vocab) -> None:
        if vocab.scores is None:
            raise metadata.error(SCORES, "no such key", f"{len(vocab)} numbers, to order merges by")
        self._vocab = vocab
        self.prefix_space = metadata.flag("tokenizer.ggml.add_space_prefix", True)
        self._unk = metadata.token_id("tokenizer.ggml.unknown_token_id", len(vocab)) or 0
        self._apart: bool | None = None  # whether no token has a space behind something else
        self._metadata = metadata
        self._scores = vocab.scores + np.float32(0)  # the library has -0 behind 0
        self._byte_fallback = len(vocab.byte_values) == 256
        for i, text in enumerate(vocab.texts):
            if "\0" in text and not (text == "\0" and self._byte_fallback):
                raise metadata.error(f"{TOKENS}[{i}]", repr(text), "what sentencepiece takes")
        self._token_of_byte = {byte: token for token, byte in vocab.byte_values.items()}
        self._n_merged = 0  # characters
        self._library: SentencePieceProcessor | None = None

    @staticmethod
    def defaults(metadata: Metadata) -> Defaults:
        """Ids and flags of the original LLaMA tokenizer."""
        return Defaults(bos=1, eos=2, unk=0, add_bos=True)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Ids of one fragment of text; after_special: it starts the text or follows a special.
        Raises MemoryError."""
        check_room(_TEXT * len(text), "the tokens of a text")
        if after_special and self.prefix_space:
            text = " " + text
        self._n_merged += len(text)
        if self._n_merged <= _FEW + len(self._vocab) // _TOKENS:
            return self._merged(text)
        library, unknown = self._taken_in(), len(self._vocab)
        return [
            self._unk if token == unknown else token
            for piece in ([text] if len(text) <= PIECE else self._pieces(text))
            for token in library.EncodeAsIds(piece)
        ]

    def _merged(self, text: str) -> list[int]:
        """Ids of a short text. A character without a token is a symbol behind all tokens; where
        it stays, it becomes its bytes, or with those beside it the unknown token."""
        n, ids = len(self._vocab), list[int]()
        symbols = [
            n + ord(c) if (token := self._token(c)) is None else token
            for c in text.replace(" ", "\u2581")
        ]
        unknown = False
        for symbol in merged(symbols, self._pair):
            if symbol < n:
                ids.append(symbol)
            elif self._byte_fallback:
                ids += (self._token_of_byte[byte] for byte in chr(symbol - n).encode())
            elif not unknown:
                ids.append(self._unk)
            unknown = symbol >= n
        return ids

    def _pair(self, left: int, right: int) -> tuple[float, int] | None:
        """What two symbols become; the best score comes first."""
        n, texts = len(self._vocab), self._vocab.texts
        a, b = (texts[i] if i < n else chr(i - n) for i in (left, right))
        made = self._token(a + b)
        return None if made is None else (-self._scores.item(made), made)

    def _token(self, text: str) -> int | None:
        """The token that stands for a text. None for zero, which the library takes for a byte."""
        token = self._vocab.ids.get(text)
        if token is None or self._vocab.types[token] in _MARKUP or text == "\0":
            return None
        return token

    def _taken_in(self) -> SentencePieceProcessor:
        """The vocabulary in the library's form."""
        if self._library is None:
            import sentencepiece

            check_room(_LIBRARY + _EACH * len(self._vocab), "the tokenizer")
            pieces = spm_pieces(self._vocab, self._scores.tolist(), self._byte_fallback)
            proto = model_proto.serialize(pieces, self._byte_fallback)
            try:
                self._library = sentencepiece.SentencePieceProcessor(model_proto=proto)
            except (RuntimeError, OSError) as error:
                raise self._metadata.error(
                    TOKENS, str(error), "what sentencepiece takes"
                ) from error
        return self._library

    def _pieces(self, text: str) -> Iterable[str]:
        """A long text cut before spaces, where no token is of both sides."""
        if self._apart is None:
            across = re.compile("[^\u2581]\u2581")
            self._apart = "\u2581" in self._vocab.ids and not any(
                map(across.search, self._vocab.texts)
            )
        return in_pieces(text, _BEFORE_SPACE) if self._apart else [text]

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; markup tokens stand for their own text."""
        return spm_piece(self._vocab, token)


def spm_piece(vocab: Vocab, token: int) -> bytes:
    """The bytes a token of a sentencepiece vocabulary stands for."""
    text = vocab.texts[token]
    byte = vocab.byte_values.get(token)
    if byte is not None:
        return bytes((byte,))
    if vocab.types[token] in VERBATIM:
        return text.encode()
    return text.replace("\u2581", " ").encode()


def spm_pieces(
    vocab: Vocab, scores: list[float], byte_fallback: bool, unmatched: tuple[TokenType, ...] = ()
) -> list[tuple[bytes, float, int]]:
    """The vocabulary as sentencepiece pieces, and one unknown piece with id len(vocab).

    sentencepiece insists on exactly one unknown piece; GGUF files hold none, one or several, so
    they are all passed as control and an own one is appended. User-defined tokens are cut out
    before, so for sentencepiece they are normal; unused ones are normal to llama.cpp. Byte tokens
    serve only when all 256 are there. unmatched: types that no text becomes.
    """
    kinds = {int(kind): model_proto.NORMAL for kind in TokenType}
    for kind in (TokenType.CONTROL, TokenType.UNKNOWN, *unmatched):
        kinds[kind] = model_proto.CONTROL
    kinds[TokenType.BYTE] = model_proto.BYTE if byte_fallback else model_proto.CONTROL
    texts = [text.encode() for text in vocab.texts]
    for token, byte in vocab.byte_values.items():
        texts[token] = b"<0x%02X>" % byte
    pieces = [
        (text, score, kinds[kind])
        for text, score, kind in zip(texts, scores, vocab.types, strict=True)
    ]
    unknown = "<unk>"
    while unknown in vocab.ids:
        unknown += ">"
    return [*pieces, (unknown.encode(), 0.0, model_proto.UNKNOWN)]
