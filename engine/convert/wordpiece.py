"""tokenizer.json of WordPiece (BERT), as llama.cpp's converter writes it: the beginning of a word
is marked with U+2581, and what continues one is not marked."""

from __future__ import annotations

from typing import Any

from .checkpoint import Checkpoint, ConvertError
from .same_ids import first_that_agrees
from .token_list import CONTROL, NORMAL, UNKNOWN, Tokens, added, id_of, kind_of

_CONTINUES = "##"


def wordpiece(source: Checkpoint, values: dict[str, Any], n: int) -> dict[str, Any]:
    """The keys of a vocabulary of at least n tokens. Raises ConvertError."""
    path, model = source.path / "tokenizer.json", values["model"]
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not vocab:
        raise ConvertError(f"{path}: model is no vocabulary of WordPiece")
    if (mark := model.get("continuing_subword_prefix", _CONTINUES)) != _CONTINUES:
        raise ConvertError(f"{path}: continuing_subword_prefix {mark!r} is not supported")
    found = Tokens(max(n, len(vocab)), 0.0)
    for text, i in vocab.items():
        begins = not id_of(source, text, i) < 0 and not text.startswith(_CONTINUES)
        found.put(i, "\u2581" + text if begins else text[len(_CONTINUES) :], NORMAL)
    for i, token in added(source):
        kind = kind_of(token)
        found.put(i, token["content"], kind)
    unknown = vocab.get(model.get("unk_token"))
    if unknown is None:
        raise ConvertError(f"{path}: unk_token {model.get('unk_token')!r} is no token")
    found.put(unknown, model["unk_token"], CONTROL if found.types[unknown] == CONTROL else UNKNOWN)
    keys = found.keys("bert", "default", False)
    keys["tokenizer.ggml.unknown_token_id"] = unknown
    normalizer = values.get("normalizer")
    normalizer = normalizer if isinstance(normalizer, dict) else {}
    lower = normalizer.get("lowercase", True) is not False
    accents = normalizer.get("strip_accents")
    keys["tokenizer.ggml.normalizer.lowercase"] = lower
    keys["tokenizer.ggml.normalizer.strip_accents"] = lower if accents is None else bool(accents)
    if first_that_agrees(path, values, [keys]) is None:
        raise ConvertError(
            f"{path}: its normalizer and pre-tokenizer are not BERT's, and GGUF has no keys for "
            "others: texts give other tokens"
        )
    return keys
