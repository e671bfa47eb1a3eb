"""tokenizer.json of a unigram model (T5, XLM-R, llm-jp): pieces with log probabilities.

Its normalizer and pre-tokenizer are chains of steps in which spaces are handled in many spellings.
GGUF has two flags and a compiled map of characters for all of that: of the values that they can
have, those are written with which the texts of a probe give the same tokens.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterator
from itertools import product
from math import isfinite
from typing import Any

from .checkpoint import Checkpoint, ConvertError
from .same_ids import first_that_agrees
from .sentencepiece_file import charsmap_called, unigram_keys
from .token_list import BYTE, NORMAL, UNKNOWN, Tokens, added, kind_of


def unigram(source: Checkpoint, values: dict[str, Any], n: int) -> dict[str, Any]:
    """The keys of a vocabulary of at least n tokens. Raises ConvertError."""
    path, model = source.path / "tokenizer.json", values["model"]
    pieces = model.get("vocab")
    if not isinstance(pieces, list) or not pieces:
        raise ConvertError(f"{path}: model is no vocabulary of a unigram model")
    found = Tokens(max(n, len(pieces)), -10000.0)
    fallback = bool(model.get("byte_fallback"))
    for i, piece in enumerate(pieces):
        text, score = piece if isinstance(piece, list) and len(piece) == 2 else (None, "")
        if not isinstance(text, str) or not _is_number(score):
            raise ConvertError(f"{path}: token {i} is {piece!r}, expected a text and a number")
        is_byte = fallback and len(text) == 6 and text.startswith("<0x")
        found.put(i, text, BYTE if is_byte else NORMAL, float(score))
    for i, token in added(source):
        score = found.scores[i] if i < len(pieces) else -1000.0
        found.put(i, token["content"], kind_of(token), score)
    unknown = model.get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(pieces):
        unknown = None
    if unknown is not None:
        found.types[unknown] = UNKNOWN
    charsmap = _charsmap(source, values.get("normalizer"))
    more = {} if unknown is None else {"tokenizer.ggml.unknown_token_id": unknown}
    several = (
        unigram_keys(found, prefix, merge, charsmap) | more
        for prefix, merge in product((True, False), repeat=2)
    )
    if (keys := first_that_agrees(path, values, several)) is not None:
        return keys
    raise ConvertError(
        f"{path}: GGUF has no keys for its normalizer and pre-tokenizer: with none of their values "
        "texts give the same tokens"
    )


def _is_number(score: Any) -> bool:
    return isinstance(score, int | float) and not isinstance(score, bool) and isfinite(score)


def _charsmap(source: Checkpoint, normalizer: Any) -> bytes:
    """The compiled map of a normalizer, or that of sentencepiece's rules of its steps' names;
    nothing where it has none."""
    steps = list(_steps(normalizer))
    maps = [s["precompiled_charsmap"] for s in steps if s.get("precompiled_charsmap")]
    if not maps:
        kinds = [s.get("type") for s in steps]
        if "NFKC" not in kinds:
            return b""
        return charsmap_called("nmt_" * ("Nmt" in kinds) + "nfkc" + "_cf" * ("Lowercase" in kinds))
    try:
        return b64decode(maps[0], validate=True)
    except (binascii.Error, TypeError, ValueError) as e:
        raise ConvertError(f"{source.path / 'tokenizer.json'}: normalizer: {e}") from None


def _steps(normalizer: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer, which may be a sequence."""
    if isinstance(normalizer, dict):
        inside = normalizer.get("normalizers")
        for step in inside if isinstance(inside, list) else [normalizer]:
            if isinstance(step, dict):
                yield step
