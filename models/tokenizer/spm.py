"""SPM tokenizers (`tokenizer.ggml.model` = "llama"), through the sentencepiece library."""

from __future__ import annotations

import re
from collections.abc import Iterable

import sentencepiece

from gguflow.engine.room import check_room

from . import model_proto
from .metadata import Metadata
from .pieces import PIECE, in_pieces
from .special import Defaults
from .vocab import SCORES, TOKENS, VERBATIM, TokenType, Vocab

# What the library takes, measured with some room: of its own, and for a token.
_LIBRARY, _EACH = 16 << 20, 512
_TEXT = 64  # for a character of a text, while it is encoded
_BEFORE_SPACE = re.compile("[^ \u2581](?= )")


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
        byte_fallback = len(vocab.byte_values) == 256
        check_room(_LIBRARY + _EACH * len(vocab), "the tokenizer")
        pieces = spm_pieces(vocab, vocab.scores.tolist(), byte_fallback)
        proto = model_proto.serialize(pieces, byte_fallback)
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
        except (RuntimeError, OSError) as error:
            raise metadata.error(TOKENS, str(error), "what sentencepiece takes") from error

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
        unknown = len(self._vocab)
        return [
            self._unk if token == unknown else token
            for piece in ([text] if len(text) <= PIECE else self._pieces(text))
            for token in self._processor.EncodeAsIds(piece)
        ]

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
