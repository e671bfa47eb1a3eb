"""tokenizer.model or spiece.model: vocabularies of sentencepiece, of merges or of probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gguflow.engine.dataclass import dataclass

from .checkpoint import MAX_JSON, Checkpoint, ConvertError
from .token_list import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Tokens,
    added,
    id_of,
    kind_of,
)

NAMES = ("tokenizer.model", "spiece.model")
UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType


def sentencepiece_file(source: Checkpoint) -> Path | None:
    """The file of a checkpoint, None where it has none."""
    return next((p for name in NAMES if (p := source.path / name).is_file()), None)


@dataclass(frozen=True)
class Rules:
    """What a ModelProto says about its model and about texts before they are cut."""

    kind: int = UNIGRAM
    charsmap: bytes = b""
    space_prefix: bool = True
    merge_spaces: bool = True
    escapes_spaces: bool = True
    spaces_behind: bool = False


def sentencepiece_keys(source: Checkpoint, path: Path, n: int) -> dict[str, Any]:
    """The keys of a vocabulary of at least n tokens: "llama" for merges, "t5" for probabilities."""
    import sentencepiece

    if path.stat().st_size > MAX_JSON:
        raise ConvertError(f"{path}: more than {MAX_JSON >> 20} MiB")
    try:
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as e:
        raise ConvertError(f"{path}: {e}") from None
    rules = rules_of(path)
    size = model.vocab_size()
    found = Tokens(max(n, size), -10000.0)
    for i in range(size):
        asked = ((model.IsUnknown, UNKNOWN), (model.IsControl, CONTROL), (model.IsUnused, UNUSED),
                 (model.IsByte, BYTE))  # fmt: skip
        kind = next((kind for ask, kind in asked if ask(i)), NORMAL)
        found.put(i, model.IdToPiece(i), kind, model.GetScore(i))
    for text, i in source.json("added_tokens.json", needed=False).items():
        found.put(id_of(source, text, i), text, USER_DEFINED, -1000.0)
    for i, token in added(source):
        if i >= size or found.types[i] in (UNUSED, NORMAL):
            found.put(i, token["content"], kind_of(token), -1000.0)
    prefix = source.json("tokenizer_config.json", needed=False).get("add_prefix_space")
    if rules.kind == UNIGRAM:
        if not rules.escapes_spaces or rules.spaces_behind:
            raise ConvertError(f"{path}: spaces that are no U+2581 before words: GGUF has no key")
        says = prefix if isinstance(prefix, bool) else rules.space_prefix
        keys = unigram_keys(found, says, rules.merge_spaces, rules.charsmap)
        return keys | {"tokenizer.ggml.unknown_token_id": model.unk_id()}
    if prefix is None and source.config.get("model_type", default="").startswith("gemma"):
        prefix = False
    keys = found.keys("llama", "default", True)
    return keys | ({} if prefix is None else {"tokenizer.ggml.add_space_prefix": bool(prefix)})


def unigram_keys(
    found: Tokens, space_prefix: bool, merge_spaces: bool, charsmap: bytes
) -> dict[str, Any]:
    """The keys of a vocabulary of probabilities, as llama.cpp's converter writes those of T5."""
    keys = found.keys("t5", "default", True)
    keys["tokenizer.ggml.add_space_prefix"] = space_prefix
    keys["tokenizer.ggml.remove_extra_whitespaces"] = merge_spaces
    if charsmap:
        keys["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(charsmap, np.uint8)
    return keys


def rules_of(path: Path) -> Rules:
    """Of a file that sentencepiece has opened. Raises ConvertError."""
    try:
        return _rules(path.read_bytes())
    except ValueError as e:
        raise ConvertError(f"{path}: {e}") from None


def charsmap_called(name: str) -> bytes:
    """The compiled map of rules of sentencepiece's own: nfkc, nmt_nfkc, nfkc_cf, nmt_nfkc_cf."""
    import sentencepiece

    made = sentencepiece.SentencePieceNormalizer(rule_name=name)
    return _rules(made.serialized_model_proto()).charsmap


def _rules(data: bytes) -> Rules:
    """Field numbers are those of `sentencepiece_model.proto`. Raises ValueError."""
    model = {n: v for n, v in _fields(data) if n in (2, 3)}
    trainer, normalizer = (dict(_fields(_octets(model.get(n, b"")))) for n in (2, 3))
    return Rules(
        kind=_whole(trainer.get(3, UNIGRAM)),
        charsmap=_octets(normalizer.get(2, b"")),
        space_prefix=bool(_whole(normalizer.get(3, 1))),
        merge_spaces=bool(_whole(normalizer.get(4, 1))),
        escapes_spaces=bool(_whole(normalizer.get(5, 1))),
        spaces_behind=bool(_whole(trainer.get(24, 0))),
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message of protobuf: (number, value). Raises ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        value: int | bytes
        if wire == 0:
            value, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(wire)
            if wire == 2:
                size, at = _varint(data, at)
            if size is None or at + size > len(data):
                raise ValueError(f"field {number} is broken")
            value, at = data[at : at + size], at + size
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is broken")


def _octets(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where bytes are expected")
    return value


def _whole(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes where a number is expected")
    return value
