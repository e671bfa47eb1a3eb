"""Builds GGUF files byte by byte, valid or broken in one place. Independent of the writer."""

from __future__ import annotations

import struct
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
TYPE_F32, TYPE_F16, TYPE_Q4_0, TYPE_Q8_0 = 0, 1, 2, 8


def string(s: str | bytes, order: str = "<") -> bytes:
    raw = s.encode() if isinstance(s, str) else s
    return struct.pack(order + "Q", len(raw)) + raw


def kv(key: str | bytes, type_id: int, value: bytes, order: str = "<") -> bytes:
    return string(key, order) + struct.pack(order + "I", type_id) + value


def u32(key: str, n: int, order: str = "<") -> bytes:
    return kv(key, U32, struct.pack(order + "I", n), order)


def arr(element: int, n: int, body: bytes = b"", order: str = "<") -> bytes:
    return struct.pack(order + "IQ", element, n) + body


def tensor(
    name: str | bytes,
    ne: tuple[int, ...],
    type_id: int = TYPE_F32,
    offset: int = 0,
    order: str = "<",
) -> bytes:
    return string(name, order) + struct.pack(f"{order}I{len(ne)}QIQ", len(ne), *ne, type_id, offset)


def gguf(
    kvs: tuple[bytes, ...] | list[bytes] = (),
    tensors: tuple[bytes, ...] | list[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_kv: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
    order: str = "<",
) -> bytes:
    """A whole file. The counts are those of the lists unless given."""
    head = magic + struct.pack(
        order + "IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(kvs) if n_kv is None else n_kv,
    )
    head += b"".join(kvs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def write(directory: Path, content: bytes, name: str = "x.gguf") -> Path:
    path = directory / name
    path.write_bytes(content)
    return path
