"""WordPiece tokenizers (`tokenizer.ggml.model` = "bert").

BERT's rules (Devlin et al. 2018, `tokenization.py`): text is cut at white space and around every
punctuation mark and CJK character, lower-cased, its accents dropped; a word becomes the longest
tokens that begin it, one after the other. A file writes the beginning of a word as U+2581.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from .metadata import Metadata
from .special import Defaults
from .spm import spm_piece
from .vocab import Vocab

_SPACE = "\u2581"
_LONGEST_WORD = 100  # characters; a longer one is unknown
_CJK = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
        (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))  # fmt: skip


class WpmModel:
    """Longest tokens first. prefix_space: every word has one, so the first one's is left out."""

    prefix_space = True

    def __init__(self, metadata: Metadata, vocab: Vocab) -> None:
        self._vocab = vocab
        self._unk = metadata.token_id("tokenizer.ggml.unknown_token_id", len(vocab))
        if self._unk is None:
            self._unk = vocab.ids.get("[UNK]", 100 if len(vocab) > 100 else 0)
        self._longest = max(map(len, vocab.texts))
        self._lower = metadata.flag("tokenizer.ggml.normalizer.lowercase", True)
        self._strip = metadata.flag("tokenizer.ggml.normalizer.strip_accents", self._lower)

    @staticmethod
    def defaults(metadata: Metadata) -> Defaults:
        """Text stands between [CLS] and [SEP]."""
        n = len(metadata.strings("tokenizer.ggml.tokens"))
        bos = metadata.token_id("tokenizer.ggml.cls_token_id", n)
        sep = metadata.token_id("tokenizer.ggml.seperator_token_id", n)
        return Defaults(bos=101 if bos is None else bos, eos=102 if sep is None else sep, unk=100,
                        add_bos=True, add_eos=True)  # fmt: skip

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Ids of one fragment of text."""
        return [i for word in self._words(text) for i in self._tokens(_SPACE + word)]

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; markup tokens stand for their own text."""
        return spm_piece(self._vocab, token)

    def _words(self, text: str) -> Iterator[str]:
        word = ""
        for char in unicodedata.normalize("NFD", text) if self._strip else text:
            kind = unicodedata.category(char)
            if char in "\t\n\r" or char.isspace():
                if word:
                    yield word
                word = ""
                continue
            if char in "\0\ufffd" or kind[0] == "C" or (self._strip and kind == "Mn"):
                continue
            said = char.lower() if self._lower else char
            if kind[0] == "P" or (char < "\x7f" and kind[0] == "S") or _is_cjk(char):
                if word:
                    yield word
                yield said
                word = ""
            else:
                word += said
        if word:
            yield word

    def _tokens(self, word: str) -> list[int]:
        assert self._unk is not None
        if len(word) > _LONGEST_WORD + len(_SPACE):
            return [self._unk]
        found, at, ids = [], 0, self._vocab.ids
        while at < len(word):
            ends = range(min(len(word), at + self._longest), at, -1)
            end = next((e for e in ends if word[at:e] in ids), None)
            if end is None:
                return [self._unk]
            found.append(ids[word[at:end]])
            at = end
        return found


def _is_cjk(char: str) -> bool:
    return any(low <= ord(char) <= high for low, high in _CJK)
