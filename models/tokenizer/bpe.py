"""BPE tokenizers (`tokenizer.ggml.model` = "gpt2" and kin), through the tokenizers library.

Merges are of bytes, or of characters where the family's rules say so (Gemma 4).
"""

from __future__ import annotations

import logging
import re
from operator import methodcaller

import tokenizers
from tokenizers import models, pre_tokenizers

from gguflow.engine.gguf import GgufError
from gguflow.engine.room import check_room

from .long_numbers import cut_numbers
from .metadata import Metadata
from .pretokenizers import PRE_TOKENIZERS, PreTokenizer
from .special import Defaults
from .vocab import VERBATIM, Vocab

MERGES = "tokenizer.ggml.merges"
PRE = "tokenizer.ggml.pre"

# What the library takes, measured with some room: of its own, for a token or a merge.
_LIBRARY, _EACH = 48 << 20, 512
_TEXT = 170  # for a character of a text, while it is encoded
_SPACE = "\u2581"
_LINE_BREAKS = re.compile("(\n+)")

_log = logging.getLogger(__name__)


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
        self._vocab = vocab
        rules = _pre_tokenizer(metadata)
        merges = _read_merges(metadata)
        check_room(_LIBRARY + _EACH * (len(vocab) + len(merges)), "the tokenizer")
        try:
            model = models.BPE(vocab.ids, merges, ignore_merges=rules.ignore_merges,
                               byte_fallback=rules.raw)  # fmt: skip
        except Exception as error:  # the library raises bare Exception
            raise _merge_error(metadata, vocab, merges, error) from error
        self._raw, self._grouping = rules.raw, rules.grouping
        self._tokenizer = tokenizers.Tokenizer(model)
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [rules.splitter(), *([] if rules.raw else [byte_level])]
        )

    @staticmethod
    def defaults(metadata: Metadata) -> Defaults:
        """No ids unless the file gives them; whether BOS is added depends on the family."""
        return Defaults(add_bos=_pre_tokenizer(metadata).add_bos)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Ids of one fragment of text. Raises MemoryError."""
        check_room(_TEXT * len(text), "the tokens of a text")
        if not self._raw:
            pieces = [text] if self._grouping is None else cut_numbers(text, self._grouping)
            if len(pieces) == 1:
                return self._tokenizer.encode(text, add_special_tokens=False).ids
            return [
                token
                for piece in pieces
                for token in self._tokenizer.encode(piece, add_special_tokens=False).ids
            ]
        ids: list[int] = []
        for part in filter(None, _LINE_BREAKS.split(text.replace(" ", _SPACE))):
            whole = self._vocab.ids.get(part) if part[0] == "\n" else None
            ids += (self._tokenizer.encode(part, add_special_tokens=False).ids
                    if whole is None else [whole])  # fmt: skip
        return ids

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
        _log.warning("%s is missing; using 'default', which may not be what the model needs", PRE)
        name = "default"
    if name not in PRE_TOKENIZERS:
        raise metadata.error(
            PRE, f"unknown pre-tokenizer {name!r}", f"one of {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return PRE_TOKENIZERS[name]


def _read_merges(metadata: Metadata) -> list[tuple[str, str]]:
    """Pairs in order of rank. A pair given twice keeps its first rank."""
    lines = metadata.strings(MERGES)
    # All lines at once is several times faster than line by line.
    tokens = " ".join(lines).split(" ") if lines else []
    if "" in tokens or set(map(methodcaller("count", " "), lines)) - {1}:
        bad = next(i for i, line in enumerate(lines)
                   if line.count(" ") != 1 or not all(line.split(" ")))  # fmt: skip
        raise metadata.error(f"{MERGES}[{bad}]", repr(lines[bad]), "two tokens, a space between")
    merges = list(zip(tokens[::2], tokens[1::2], strict=True))
    return merges if len(set(lines)) == len(lines) else list(dict.fromkeys(merges))


def _merge_error(
    metadata: Metadata, vocab: Vocab, merges: list[tuple[str, str]], error: Exception
) -> GgufError:
    for left, right in merges:
        for text in (left, right, left + right):
            if text not in vocab.ids:
                return metadata.error(
                    MERGES, f"merge {f'{left} {right}'!r} without a token {text!r}", "its tokens"
                )
    return metadata.error(MERGES, str(error), "what the tokenizers library takes")
