"""Tokenizer: text to token ids and back, from the metadata of a GGUF file."""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Mapping
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING

from gguflow.engine.gguf import GgufFile
from gguflow.engine.gguf.errors import show

from .metadata import Metadata
from .special import SpecialSplitter, read_special_tokens
from .stream import TextStream
from .vocab import TokenType, Vocab

if TYPE_CHECKING:
    from .bpe import BpeModel
    from .spm import SpmModel
    from .ugm import UgmModel
    from .wpm import WpmModel

    Model = type[SpmModel] | type[BpeModel] | type[UgmModel] | type[WpmModel]

MODEL = "tokenizer.ggml.model"

# Module and class by name: the two libraries behind them are slow to import.
_MODELS = {
    "llama": ("spm", "SpmModel"), "gpt2": ("bpe", "BpeModel"), "gemma4": ("bpe", "BpeModel"),
    "whitespace": ("bpe", "BpeModel"), "bert": ("wpm", "WpmModel"), "t5": ("ugm", "UgmModel"),
}  # fmt: skip


def _model_class(model: str) -> Model:
    module, name = _MODELS[model]
    found: Model = getattr(import_module(f".{module}", __package__), name)
    return found


class Tokenizer:
    """A vocabulary and its rules. Make one with `load` or `from_metadata`.

    n_vocab: number of tokens. bos, eos, eot, unk: ids, None where the file has none.
    eog_ids: ids that end a generation. add_bos, add_eos: what `encode(add_special=True)` adds.
    model: "llama" (SPM), "gpt2" (BPE), "bert" (WPM), "t5" (UGM), ...
    """

    def __init__(self, metadata: Metadata) -> None:
        model = metadata.text(MODEL, None)
        if model is None:
            raise metadata.error(MODEL, "no such key", "a vocabulary")
        if model not in _MODELS:
            raise metadata.error(
                MODEL, f"unsupported tokenizer {show(model)}", f"one of {', '.join(_MODELS)}"
            )
        cls = _model_class(model)
        vocab = Vocab(metadata)
        special = read_special_tokens(metadata, vocab, cls.defaults(metadata))
        self.model = model
        self.n_vocab = len(vocab)
        self.n_rows = self.n_vocab  # a model whose embedding is padded can give ids up to this
        self.bos, self.eos, self.eot, self.unk = special.bos, special.eos, special.eot, special.unk
        self.eog_ids = special.eog_ids
        self.add_bos, self.add_eos = special.add_bos, special.add_eos
        self._vocab = vocab
        self._model = cls(metadata, vocab)
        self._splitter = SpecialSplitter(vocab)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Tokenizer:
        """The tokenizer of any GGUF file that holds a vocabulary.

        Raises GgufError for a file that is no GGUF or whose vocabulary cannot be used.
        """
        with GgufFile.open(path) as file:
            return cls.from_metadata(file.metadata, source=str(path))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], source: str = "<metadata>") -> Tokenizer:
        """From GGUF keys and values; source: the file's name, for error messages.

        Arrays of strings are sequences of str, arrays of numbers numpy arrays or lists.
        Raises GgufError naming the key.
        """
        return cls(Metadata(metadata, source))

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        add_special: begin with BOS and end with EOS where the file says so.
        parse_special: text of special tokens, such as `<|eot_id|>`, becomes those tokens; leave it
        off for text you do not trust. User-defined tokens are found either way.
        Lone surrogates, which are no text, are read as U+FFFD.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, not {type(text).__name__}")
        text = _replace_surrogates(text)
        ids: list[int] = []
        if add_special and self.add_bos and self.bos is not None:
            ids.append(self.bos)
        after_special = True
        for fragment in self._splitter.split(text, parse_special):
            if isinstance(fragment, str):
                ids += self._model.encode(fragment, after_special)
                after_special = False
            else:
                ids.append(fragment)
                after_special = True
        if add_special and self.add_eos and self.eos is not None:
            ids.append(self.eos)
        return ids

    def decode(
        self, ids: Iterable[int], skip_special: bool = True, strip_space: bool = True
    ) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD.

        skip_special: leave out control and unknown tokens. strip_space: drop the space that SPM
        encoding put before the text; turn it off for ids that continue a text.
        Raises TypeError for what are no ids, ValueError naming an id outside the vocabulary.
        """
        if isinstance(ids, str):
            raise TypeError("token ids must be whole numbers in a list or an array, not str")
        stream = self.stream(skip_special, strip_space)
        return "".join([*map(stream.push, ids), stream.flush()])

    def stream(
        self,
        skip_special: bool = True,
        strip_space: bool = False,
        show: Container[int] = frozenset(),
    ) -> TextStream:
        """A decoder for ids that come one at a time: `.push(id) -> str`, `.flush() -> str`.

        By default the ids are taken to continue a text, so a leading space is kept. show: special
        tokens that are not left out.
        """

        def shown(token: int) -> bytes:
            return self.piece(token) if token in show else self._shown_piece(token)

        piece = shown if skip_special else self.piece
        return TextStream(piece, strip_space and self._model.prefix_space)

    def piece(self, token: int) -> bytes:
        """The bytes of one token, possibly part of a character; markup shows as its own text."""
        return self._model.piece(self._check(token))

    def token_text(self, token: int) -> str:
        """The token as the file writes it, e.g. `▁the`, `Ġthe` or `<0x0A>`."""
        return self._vocab.texts[self._check(token)]

    def token_type(self, token: int) -> TokenType:
        """The token's type; tokens known to end a generation are CONTROL whatever the file says."""
        return TokenType(self._vocab.types[self._check(token)])

    def is_special(self, token: int) -> bool:
        """True for control and unknown tokens: markup that `decode` leaves out."""
        return self._vocab.is_special(self._check(token))

    def id_of(self, text: str) -> int | None:
        """The id of the token the file writes as `text`, None if there is none."""
        return self._vocab.ids.get(text)

    def _shown_piece(self, token: int) -> bytes:
        if self.n_vocab <= token < self.n_rows:
            return b""
        return b"" if self.is_special(token) else self._model.piece(token)

    def _check(self, token: int) -> int:
        index = operator.index(token)
        if not 0 <= index < self.n_vocab:
            raise ValueError(
                f"token id {index} is outside the vocabulary (0 to {self.n_vocab - 1})"
            )
        return index


def _replace_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    return text
