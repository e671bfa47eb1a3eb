"""Special tokens: which ids they are, which of them end a generation, and finding them in text."""

from __future__ import annotations

from gguflow.engine.dataclass import dataclass

from .metadata import Metadata
from .vocab import VERBATIM, TokenType, Vocab

# Files rarely say which token ends a turn, so the field goes by the text. First match wins.
_END_OF_TURN = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
)
# Texts that end a generation whatever the file's keys say.
_END_OF_GENERATION = frozenset(_END_OF_TURN) | {
    "<|eom_id|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "</s>",
    "[EOS]",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
}
# Fill-in-the-middle separators: the next file or repository starts, so this text is over.
_FILL_IN_MIDDLE_END = {
    "tokenizer.ggml.fim_pad_token_id": (
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
    ),
    "tokenizer.ggml.fim_rep_token_id": (
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
    ),
    "tokenizer.ggml.fim_sep_token_id": ("<|file_sep|>",),
}


@dataclass(frozen=True)
class Defaults:
    """What holds when the file has no key for it; depends on the tokenizer model."""

    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    add_bos: bool = False
    add_eos: bool = False


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens, None where the file has none, and whether encode adds them."""

    bos: int | None
    eos: int | None
    eot: int | None
    unk: int | None
    add_bos: bool
    add_eos: bool
    eog_ids: frozenset[int]


def read_special_tokens(metadata: Metadata, vocab: Vocab, defaults: Defaults) -> SpecialTokens:
    """Special tokens from the `tokenizer.ggml.*` keys, then by text as llama.cpp finds them.

    Tokens whose text marks an end become CONTROL in `vocab.types` if they were not.
    Raises GgufError for ids outside the vocabulary and for an add_bos/add_eos flag without
    its token.
    """

    def by_key(name: str, default: int | None = None) -> int | None:
        found = metadata.token_id(f"tokenizer.ggml.{name}_token_id", len(vocab))
        if found is None and default is not None and default < len(vocab):
            return default
        return found

    bos, eos = by_key("bos", defaults.bos), by_key("eos", defaults.eos)
    eot = by_key("eot")
    if eot is None:
        eot = _first(vocab, _END_OF_TURN)
    eom = by_key("eom")
    eog = {vocab.ids[text] for text in _END_OF_GENERATION if text in vocab.ids}
    for key, texts in _FILL_IN_MIDDLE_END.items():
        fim = metadata.token_id(key, len(vocab))
        if fim is None:
            fim = _first(vocab, texts)
        if fim is not None:
            eog.add(fim)
    for token in eog:
        vocab.types[token] = int(TokenType.CONTROL)
    eog |= {token for token in (eos, eot, eom) if token is not None}
    _drop_ordinary_ends(vocab, eog)
    return SpecialTokens(
        bos=bos,
        eos=eos,
        eot=eot,
        unk=by_key("unknown", defaults.unk),
        add_bos=_read_add(metadata, "bos", bos, defaults.add_bos),
        add_eos=_read_add(metadata, "eos", eos, defaults.add_eos),
        eog_ids=frozenset(eog),
    )


def _first(vocab: Vocab, texts: tuple[str, ...]) -> int | None:
    return next((vocab.ids[text] for text in texts if text in vocab.ids), None)


def _drop_ordinary_ends(vocab: Vocab, eog: set[int]) -> None:
    """Removes end texts that other tokens of the same vocabulary show to be ordinary markup."""
    texts = {vocab.texts[token] for token in eog}
    # Harmony and Solar: <|end|> ends a message inside an answer that goes on.
    if {"<|return|>", "<|call|>"} <= texts or (
        "<|flush|>" in texts and texts & {"<|call|>", "<|calls|>"}
    ):
        _demote(vocab, eog, "<|end|>", TokenType.USER_DEFINED)
    # Gemma 4 has an HTML tag of that name.
    if texts & {"<|tool_response>", "<|plamo:eos|>"}:
        _demote(vocab, eog, "</s>", TokenType.NORMAL)


def _demote(vocab: Vocab, eog: set[int], text: str, kind: TokenType) -> None:
    token = vocab.ids.get(text)
    if token in eog:
        eog.remove(token)
        vocab.types[token] = int(kind)


def _read_add(metadata: Metadata, name: str, token: int | None, default: bool) -> bool:
    key = f"tokenizer.ggml.add_{name}_token"
    if token is not None:
        return metadata.flag(key, default)
    if metadata.flag(key, False):
        raise metadata.error(key, "true", f"false, as there is no {name}_token_id")
    return False


class SpecialSplitter:
    """Cuts text at the special tokens in it: longest first (in UTF-8 bytes), then by id."""

    def __init__(self, vocab: Vocab) -> None:
        tokens = vocab.of_types(VERBATIM)
        tokens.sort(key=lambda token: -len(vocab.texts[token].encode("utf-8", "surrogatepass")))
        self._all = [(vocab.texts[token], token) for token in tokens]
        # User-defined tokens are text that must stay whole; they are found in any input.
        self._user_defined = [
            (text, token)
            for text, token in self._all
            if vocab.types[token] == TokenType.USER_DEFINED
        ]

    def split(self, text: str, parse_special: bool) -> list[str | int]:
        """Fragments in order: non-empty strings and token ids.

        A longer token anywhere in the text wins over a shorter one that overlaps it, so the text
        is searched once per token; tokens that do not occur cost one substring search.
        """
        fragments: list[str | int] = [text] if text else []
        for special, token in self._all if parse_special else self._user_defined:
            if special in text:
                fragments = [
                    piece
                    for fragment in fragments
                    for piece in (
                        _cut(fragment, special, token) if isinstance(fragment, str) else [fragment]
                    )
                ]
        return fragments


def _cut(text: str, special: str, token: int) -> list[str | int]:
    pieces: list[str | int] = []
    for i, part in enumerate(text.split(special)):
        if i:
            pieces.append(token)
        if part:
            pieces.append(part)
    return pieces
