"""BPE tokenizers (`tokenizer.ggml.model` = "gpt2" and kin).

Words are cut by the tokenizers library. It merges them too where there is much text; taking in the
merges of a large vocabulary costs it half a second and 150 MB, so until then they are merged by
`merges`, to the same tokens. Merges are of bytes, or of characters where the family's rules say so
(Gemma 4).
"""

from __future__ import annotations

import re
from functools import cached_property

import tokenizers
from tokenizers import models, pre_tokenizers

from gguflow.engine.gguf.errors import show
from gguflow.engine.room import check_room

from .long_numbers import cut_numbers
from .merges import MERGES, Merges
from .metadata import Metadata
from .pieces import in_pieces
from .pretokenizers import PRE_TOKENIZERS, PreTokenizer
from .special import Defaults
from .vocab import VERBATIM, Vocab

PRE = "tokenizer.ggml.pre"

# What the library takes, measured with some room: of its own, for a token or a merge.
_LIBRARY, _EACH = 48 << 20, 512
_TEXT = 170  # for a character of a text, while it is encoded
_SPACE = "\u2581"
_LINE_BREAKS = re.compile("(\n+)")
_LINE_END = re.compile(r"\S\n(?=[A-Za-z])")  # of words, in all rules but those that join lines
# Characters merged in Python, at ten microseconds or so, before the library is worth its start, and
# of one text before it is cut into a list of words.
_FEW, _SHORT = 40_000, 100_000


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte: itself, or the next free one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(hidden)
    }


_BYTE_OF = _byte_alphabet()


class BpeModel:
    """Merges by rank over the bytes or characters of each word. prefix_space: as SpmModel's, never
    set."""

    prefix_space = False

    def __init__(self, metadata: Metadata, vocab: Vocab) -> None:
        self._metadata, self._vocab = metadata, vocab
        self._rules = rules = _pre_tokenizer(metadata)
        self._raw = rules.raw
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._cutter = pre_tokenizers.Sequence(
            [rules.splitter(), *([] if rules.raw else [byte_level])]
        )
        metadata.string_array(MERGES)  # is there
        if not rules.ignore_merges:
            _ = self._merges  # wrong ones are refused now
        self._library: tokenizers.Tokenizer | None = None
        self._words: dict[str, list[int]] = {}
        self._n_merged = 0  # characters

    @cached_property
    def _merges(self) -> Merges:
        """Where words of the vocabulary stay whole, a prompt may have no other, and the tables of
        the merges are half of what a large vocabulary takes. Raises GgufError."""
        return Merges(self._metadata, self._vocab)

    @staticmethod
    def defaults(metadata: Metadata) -> Defaults:
        """No ids unless the file gives them; whether BOS is added depends on the family."""
        return Defaults(add_bos=_pre_tokenizer(metadata).add_bos)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Ids of one fragment of text. Raises MemoryError."""
        check_room(_TEXT * len(text), "the tokens of a text")
        if len(text) > _SHORT:
            self._use_library()
        if not self._raw:
            grouping = self._rules.grouping
            pieces = [text] if grouping is None else cut_numbers(text, grouping)
            return [
                i
                for piece in pieces
                for part in ([piece] if self._rules.joins_lines else in_pieces(piece, _LINE_END))
                for i in self._ids(part)
            ]
        ids: list[int] = []
        for part in filter(None, _LINE_BREAKS.split(text.replace(" ", _SPACE))):
            whole = self._vocab.ids.get(part) if part[0] == "\n" else None
            ids += self._ids(part) if whole is None else [whole]
        return ids

    def _ids(self, text: str) -> list[int]:
        if self._library is None and self._n_merged <= _FEW:
            words = self._cutter.pre_tokenize_str(text)
            return [i for word, _ in words for i in (self._words.get(word) or self._word(word))]
        return self._use_library().encode(text, add_special_tokens=False).ids

    def _use_library(self) -> tokenizers.Tokenizer:
        if self._library is None:
            self._library = self._take_in()
            self._words = {}
        return self._library

    def _word(self, word: str) -> list[int]:
        """Tokens of a word that was not seen before."""
        known = self._vocab.ids
        if self._rules.ignore_merges and word in known:
            ids = [known[word]]
        else:
            self._n_merged += len(word)
            ids = self._merges.merge([i for char in word for i in self._character(char)])
        self._words[word] = ids
        return ids

    def _character(self, char: str) -> list[int]:
        """Its token, or those of its bytes; a character without any is left out."""
        token = self._vocab.ids.get(char)
        if token is not None:
            return [token]
        found = [self._vocab.ids.get(f"<0x{b:02X}>") for b in char.encode()] if self._raw else []
        ids = [i for i in found if i is not None]
        return ids if len(ids) == len(found) else []

    def _take_in(self) -> tokenizers.Tokenizer:
        """The vocabulary in the library's form."""
        merges = _read_merges(self._metadata)
        check_room(_LIBRARY + _EACH * (len(self._vocab) + len(merges)), "the tokenizer")
        try:
            model = models.BPE(self._vocab.ids, merges, ignore_merges=self._rules.ignore_merges,
                               byte_fallback=self._raw)  # fmt: skip
        except Exception as error:  # the library raises bare Exception
            raise self._metadata.error(MERGES, str(error), "what tokenizers takes") from error
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = self._cutter
        return tokenizer

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; markup tokens stand for their own text."""
        text = self._vocab.texts[token]
        byte = self._vocab.byte_values.get(token)
        if byte is not None:
            return bytes((byte,))
        if self._vocab.types[token] in VERBATIM:
            return text.encode()
        if self._raw:
            return text.replace(_SPACE, " ").encode()
        try:
            return bytes(map(_BYTE_OF.__getitem__, text))
        except KeyError:  # not written in the byte alphabet, so it is plain text
            return text.encode()


def _pre_tokenizer(metadata: Metadata) -> PreTokenizer:
    name = metadata.text(PRE, None)
    model = metadata.text("tokenizer.ggml.model", None)
    if model in PRE_TOKENIZERS:  # "gemma4" and "whitespace" say it all
        name = model
    if name is None:
        import logging

        log = logging.getLogger(__name__)
        log.warning("%s is missing; using 'default', which may not be what the model needs", PRE)
        name = "default"
    if name not in PRE_TOKENIZERS:
        raise metadata.error(
            PRE,
            f"unknown pre-tokenizer {show(name)}",
            f"one of {', '.join(sorted(PRE_TOKENIZERS))}",
        )
    return PRE_TOKENIZERS[name]


def _read_merges(metadata: Metadata) -> list[tuple[str, str]]:
    """Pairs in order of rank, each with its first one."""
    # All lines at once is several times faster than line by line.
    tokens = " ".join(metadata.strings(MERGES)).split(" ")
    return list(dict.fromkeys(zip(tokens[::2], tokens[1::2], strict=False)))
