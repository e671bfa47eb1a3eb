"""Parses the header of one GGUF file: everything before the tensor data."""

from __future__ import annotations

from typing import Any

from gguflow.engine.dataclass import dataclass

from .cursor import Cursor
from .metadata import LEAST_KEY_BYTES, MAX_KEYS, read_metadata
from .tensors import LEAST_INFO_BYTES, MAX_TENSORS, TensorInfo, locate, read_tensor_infos

# PWRI marks the models of PowerInfer: GGUF version 3 in all but the magic.
MAGICS = (b"GGUF", b"PWRI")
VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 24


@dataclass(frozen=True)
class Header:
    """What one file says of itself. `types` are the kinds of the `metadata` values, by key."""

    magic: str
    version: int
    big_endian: bool
    alignment: int
    metadata: dict[str, Any]
    types: dict[str, str]
    tensors: list[TensorInfo]


def alignment_fault(n: int) -> str | None:
    """What is wrong with an alignment of `n`: an expectation it does not meet, or None."""
    if n & (n - 1) or not 8 <= n <= MAX_ALIGNMENT:
        return f"a power of two from 8 to {MAX_ALIGNMENT}"
    return None


def read_header(path: str, buffer: memoryview, empty_tensors: bool = False) -> Header:
    """Parse and check the header of the file mapped at `buffer`. Raises GgufError.

    empty_tensors: dimensions may be 0.
    """
    cur = Cursor(path, buffer)
    magic = cur.take(4, "magic")
    if magic not in MAGICS:
        raise cur.error("magic", repr(magic), "b'GGUF' (is this a GGUF file?)", 0)
    version = cur.scalar("I", "version")
    if version & 0xFFFF == 0 and version:
        # A small number whose bytes are the other way round: the file is big-endian.
        cur.order = ">"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    big_endian = cur.order == ">"
    if version not in VERSIONS:
        raise cur.error("version", f"{version}", f"one of {', '.join(map(str, VERSIONS))}", 4)
    n_tensors = _count(cur, "tensors", LEAST_INFO_BYTES, MAX_TENSORS)
    n_kv = _count(cur, "keys", LEAST_KEY_BYTES, MAX_KEYS)
    metadata, types, offsets = read_metadata(cur, n_kv)

    alignment = DEFAULT_ALIGNMENT
    if ALIGNMENT_KEY in metadata:
        field, at = f"key {ALIGNMENT_KEY!r}", offsets[ALIGNMENT_KEY]
        if types[ALIGNMENT_KEY] != "u32":
            raise cur.error(field, types[ALIGNMENT_KEY], "u32", at)
        alignment = metadata[ALIGNMENT_KEY]
        if fault := alignment_fault(alignment):
            raise cur.error(field, alignment, fault, at)

    infos = read_tensor_infos(cur, n_tensors, alignment, 0 if empty_tensors else 1)
    start = -(-cur.pos // alignment) * alignment
    tensors = locate(cur, infos, start, len(buffer))
    return Header(magic.decode(), version, big_endian, alignment, metadata, types, tensors)


def _count(cur: Cursor, what: str, least_bytes: int, most: int) -> int:
    """A count from the start of the file, refused unless that many could follow."""
    field, at = f"number of {what}", cur.pos
    n: int = cur.scalar("Q", field)
    cur.check_count(n, least_bytes, what, field, at)
    if n > most:
        raise cur.error(field, n, f"at most {most}", at)
    return n
