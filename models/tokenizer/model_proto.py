"""Serializes the few fields of a sentencepiece ModelProto that a GGUF vocabulary holds.

Field numbers are those of `sentencepiece_model.proto`. Written by hand because the generated
module needs the protobuf package, which nothing else here does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # ModelProto.SentencePiece.Type
UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType
_VARINTS = [bytes((i,)) for i in range(128)]  # those of one byte
_FLOAT = struct.Struct("<f")


def serialize(
    pieces: Iterable[tuple[bytes, float, int]],
    byte_fallback: bool,
    kind: int = BPE,
    charsmap: bytes = b"",
    space_prefix: bool = False,
    merge_spaces: bool = False,
) -> bytes:
    """A ModelProto of (text, score, type) pieces.

    By default it changes nothing in its input: no normalization, no added or removed spaces; only
    " " is written as U+2581. charsmap: compiled rules of normalization.
    """
    body = bytearray()
    first, score_tag, kind_tag = _tag(1, 2), _tag(2, 5), _tag(3, 0)
    for text, score, piece_kind in pieces:  # a hundred thousand of them: no call that can be spared
        rest = score_tag + _FLOAT.pack(score) + kind_tag + _varint(piece_kind)
        text_size = _varint(len(text))
        body += first + _varint(len(first) + len(text_size) + len(text) + len(rest))
        body += first + text_size + text + rest
    trainer = _field(3, kind) + _field(35, byte_fallback)
    # add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces
    normalizer = _field(3, space_prefix) + _field(4, merge_spaces) + _field(5, True)
    if charsmap:
        normalizer = _message(2, charsmap) + normalizer
    return bytes(body) + _message(2, trainer) + _message(3, normalizer)


def _varint(value: int) -> bytes:
    if value < 128:
        return _VARINTS[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _field(number: int, value: int) -> bytes:
    return _tag(number, 0) + _varint(value)


def _message(number: int, payload: bytes) -> bytes:
    return _tag(number, 2) + _varint(len(payload)) + payload
