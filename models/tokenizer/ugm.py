"""UGM tokenizers (`tokenizer.ggml.model` = "t5"), through the sentencepiece library."""

from __future__ import annotations

import numpy as np
import sentencepiece

from . import model_proto
from .metadata import Metadata
from .special import Defaults
from .spm import spm_piece, spm_pieces
from .vocab import SCORES, TOKENS, TokenType, Vocab

CHARSMAP = "tokenizer.ggml.precompiled_charsmap"


class UgmModel:
    """The most probable tokens of a text under a unigram model, after the file's normalization.

    prefix_space: whether a space is put before every fragment of text.
    """

    def __init__(self, metadata: Metadata, vocab: Vocab) -> None:
        if vocab.scores is None:
            raise metadata.error(SCORES, "no such key", f"{len(vocab)} log probabilities")
        self._vocab = vocab
        self._unk = metadata.token_id("tokenizer.ggml.unknown_token_id", len(vocab))
        self.prefix_space = metadata.flag("tokenizer.ggml.add_space_prefix", False)
        fallback = len(vocab.byte_values) == 256
        # Tokens that no text becomes have scores that mean nothing; the lowest score of the others
        # is what a character without a token is charged by.
        unmatched = (TokenType.UNUSED, TokenType.USER_DEFINED)
        pieces = spm_pieces(vocab, vocab.scores.tolist(), fallback, unmatched)
        proto = model_proto.serialize(
            pieces, fallback, model_proto.UNIGRAM, _charsmap(metadata), self.prefix_space,
            metadata.flag("tokenizer.ggml.remove_extra_whitespaces", False),
        )  # fmt: skip
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
        except (RuntimeError, OSError) as error:
            raise metadata.error(TOKENS, str(error), "what sentencepiece takes") from error

    @staticmethod
    def defaults(metadata: Metadata) -> Defaults:
        """Ids and flags of T5."""
        return Defaults(eos=1, unk=2, add_eos=True)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Ids of one fragment of text."""
        unknown = len(self._vocab)
        unk = 2 if self._unk is None else self._unk
        return [unk if i == unknown else i for i in self._processor.EncodeAsIds(text)]

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; markup tokens stand for their own text."""
        return spm_piece(self._vocab, token)


def _charsmap(metadata: Metadata) -> bytes:
    raw = metadata.octets(CHARSMAP)
    if raw is None:
        return b""
    size = int.from_bytes(raw[:4].tobytes(), "little")
    if len(raw) <= 4 or size % 4 or size + 4 >= len(raw):
        raise metadata.error(CHARSMAP, f"{len(raw)} bytes, of which {size} are a trie", "a map")
    return np.ascontiguousarray(raw).tobytes()
