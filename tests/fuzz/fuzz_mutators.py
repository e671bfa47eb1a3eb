"""Mutators that know the structure: GGUF files as keys and tensors, JSON as trees, text as pieces.

A byte flipped at random is refused by the first length it breaks; a file whose lengths are right
and whose numbers are not gets everywhere.
"""

from __future__ import annotations

import struct
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
_FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B",
            U64: "Q", I64: "q", F64: "d"}  # fmt: skip
NUMBERS = (0, 1, 2, 3, 5, 31, 32, 63, 64, 65, 127, 128, 255, 256, 1000, 4096, 32767, 65535, 1 << 20,
           (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 62), (1 << 63) - 1, (1 << 64) - 1, -1, -2,
           -128, -(1 << 31), -(1 << 63))  # fmt: skip
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 1e30, 3.4e38, 1e300, float("nan"), float("inf"),
         float("-inf"))  # fmt: skip
STRINGS = (b"", b"\0", b"llama", b"gpt2", b"bert", b"yarn", b"linear", b"none", b"\xff\xfe", b" ",
           b"\x1b]52;c;aGk=\x07", "\u202e\u2066\x9b".encode(), b"a" * 5000, "\ud800".encode("utf-8",
           "surrogatepass"), b"{{ 1 }}", b"<0x0A>", b"\n", "\u2581".encode())  # fmt: skip
TYPES = (0, 1, 2, 3, 6, 7, 8, 10, 12, 14, 16, 18, 24, 26, 27, 28, 30, 34, 39, 40, 5, 99)


@dataclass
class Gguf:
    """A file as it is written. A scalar is its bytes, text its bytes, an array (element type,
    list)."""

    version: int = 3
    keys: list[tuple[bytes, int, Any]] = field(default_factory=list)
    tensors: list[tuple[bytes, list[int], int, int]] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    lies: dict[str, int] = field(default_factory=dict)  # n_keys, n_tensors as the header has them

    def build(self) -> bytes:
        n_tensors = self.lies.get("n_tensors", len(self.tensors))
        n_keys = self.lies.get("n_keys", len(self.keys))
        out = [self.magic + struct.pack("<IQQ", self.version, n_tensors, n_keys)]
        for key, kind, value in self.keys:
            out.append(_text(key) + struct.pack("<I", kind) + _value(kind, value))
        for name, ne, kind, offset in self.tensors:
            dims = b"".join(struct.pack("<Q", n & ((1 << 64) - 1)) for n in ne)
            out.append(_text(name) + struct.pack("<I", len(ne)) + dims)
            out.append(struct.pack("<IQ", kind, offset & ((1 << 64) - 1)))
        head = b"".join(out)
        return head + bytes(-len(head) % 32) + self.data


def _text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def _value(kind: int, value: Any) -> bytes:
    if kind == STR and isinstance(value, bytes):
        return _text(value)
    if kind == ARR and isinstance(value, tuple):
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(_value(element, i) for i in items)
    return value if isinstance(value, bytes) else b""


@lru_cache(64)
def parse(raw: bytes) -> Gguf | None:
    """A little-endian file that is well formed; None for any other. Kept, and so not to be changed:
    most inputs are mutants of the corpus."""
    try:
        return _Parser(raw).file()
    except (struct.error, KeyError, IndexError, MemoryError, RecursionError):
        return None


class _Parser:
    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def take(self, fmt: str) -> Any:
        (value,) = struct.unpack_from("<" + fmt, self.raw, self.at)
        self.at += struct.calcsize("<" + fmt)
        return value

    def text(self) -> bytes:
        n = self.take("Q")
        if n > len(self.raw):
            raise IndexError
        self.at += n
        return self.raw[self.at - n : self.at]

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == STR:
            return self.text()
        if kind == ARR:
            element, n = self.take("I"), self.take("Q")
            if n > len(self.raw) or depth > 8:
                raise IndexError
            return element, [self.value(element, depth + 1) for _ in range(n)]
        size = struct.calcsize(_FORMATS[kind])
        self.at += size
        return self.raw[self.at - size : self.at]

    def file(self) -> Gguf:
        magic, self.at = self.raw[:4], 4
        version, n_tensors, n_keys = self.take("I"), self.take("Q"), self.take("Q")
        if max(n_tensors, n_keys) > len(self.raw):
            raise IndexError
        keys = []
        for _ in range(n_keys):
            key, kind = self.text(), self.take("I")
            keys.append((key, kind, self.value(kind)))
        tensors = []
        for _ in range(n_tensors):
            name, n = self.text(), self.take("I")
            if n > 8:
                raise IndexError
            tensors.append((name, [self.take("Q") for _ in range(n)], self.take("I"),
                            self.take("Q")))  # fmt: skip
        start = -(-self.at // 32) * 32
        return Gguf(version, keys, tensors, self.raw[start:], magic)


def scalar(kind: int, r: Random) -> bytes:
    """Bytes of a scalar, an interesting one."""
    if kind == STR:
        return r.choice(STRINGS)
    fmt = _FORMATS.get(kind, "I")
    if fmt in "fd":
        value: float = r.choice(REALS) if r.random() < 0.7 else r.uniform(-100, 100)
        try:
            return struct.pack("<" + fmt, value)
        except OverflowError:
            return struct.pack("<" + fmt, float("inf"))
    size = struct.calcsize(fmt)
    number = r.choice(NUMBERS) if r.random() < 0.8 else r.randrange(200)
    return (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def any_value(r: Random, depth: int = 0) -> tuple[int, Any]:
    """A type and a value of it."""
    kind = r.randrange(13)
    if kind != ARR:
        return kind, scalar(kind, r)
    element = r.randrange(13) if depth < 2 else U8
    n = r.choice((0, 1, 2, 3, 7, 40))
    if element == ARR:
        return ARR, (ARR, [any_array(r, depth + 1) for _ in range(n)])
    return ARR, (element, [scalar(element, r) for _ in range(n)])


def any_array(r: Random, depth: int) -> tuple[int, Any]:
    element = r.choice((U8, I32, F32, STR))
    return element, [scalar(element, r) for _ in range(r.randrange(4))]


def mutate_gguf(g: Gguf, r: Random) -> Gguf:
    """The file with one to three things changed."""
    # What is in these lists is replaced and never changed.
    g = replace(g, keys=[*g.keys], tensors=[*g.tensors], lies={**g.lies})
    for _ in range(r.choice((1, 1, 1, 2, 3))):
        if r.random() < 0.65 and g.keys:
            _mutate_key(g, r)
        elif r.random() < 0.85 and g.tensors:
            _mutate_tensor(g, r)
        else:
            _mutate_header(g, r)
    return g


def _mutate_key(g: Gguf, r: Random) -> None:
    i = r.randrange(len(g.keys))
    key, kind, value = g.keys[i]
    what = r.randrange(9)
    if what == 0:
        del g.keys[i]
    elif what == 1:
        g.keys.insert(r.randrange(len(g.keys)), (key, *any_value(r)))
    elif what == 2:
        g.keys[i] = (key, *any_value(r))
    elif what == 3:
        other = r.choice(g.keys)
        g.keys[i] = (key, other[1], other[2])
    elif what == 4:
        g.keys[i] = (r.choice((key + b"x", b"", key[:-1], key.upper())), kind, value)
    elif kind == ARR:
        g.keys[i] = (key, kind, _mutate_array(value, r))
    else:
        g.keys[i] = (key, kind, scalar(kind, r))


def _mutate_array(value: tuple[int, list[Any]], r: Random) -> tuple[int, list[Any]]:
    element, items = value
    items = list(items)
    what = r.randrange(6)
    if what == 0:
        return element, items[: r.randrange(len(items) + 1)]
    if what == 1 and element != ARR:
        return element, items + [scalar(element, r) for _ in range(r.choice((1, 2, 50)))]
    if what == 2:
        other = r.choice([k for k in range(13) if k != ARR])
        return other, [scalar(other, r) for _ in items[:200]]
    if what == 3:
        return ARR, [any_array(r, 0) for _ in items[:50]]
    if what == 4 and len(items) > 1:
        a, b = r.randrange(len(items)), r.randrange(len(items))
        items[a] = items[b]  # a token twice
        return element, items
    if items and element != ARR:
        for _ in range(r.choice((1, 1, 5))):
            items[r.randrange(len(items))] = scalar(element, r)
    return element, items


def _mutate_tensor(g: Gguf, r: Random) -> None:
    i = r.randrange(len(g.tensors))
    name, ne, kind, offset = g.tensors[i]
    ne = list(ne)
    what = r.randrange(9)
    if what == 0:
        del g.tensors[i]
    elif what == 1:
        g.tensors.append(g.tensors[i])
    elif what == 2:
        j = r.randrange(len(g.tensors))
        g.tensors[i], g.tensors[j] = (g.tensors[j][0], *g.tensors[i][1:]), (name, *g.tensors[j][1:])
    elif what == 3 and ne:
        ne[r.randrange(len(ne))] = r.choice(NUMBERS)
        g.tensors[i] = (name, ne, kind, offset)
    elif what == 4:
        ne = r.choice((ne[::-1], [*ne, 1], ne[:-1], [1, *ne], [], [1] * 5))
        g.tensors[i] = (name, ne, kind, offset)
    elif what == 5:
        g.tensors[i] = (name, ne, r.choice(TYPES), offset)
    elif what == 6:
        g.tensors[i] = (name, ne, kind, r.choice((offset + 32, 0, offset + 1, *NUMBERS)))
    elif what == 7:
        g.tensors[i] = (name.replace(b"0", b"1", 1) + r.choice((b"", b"2")), ne, kind, offset)
    elif g.data:
        at = r.randrange(len(g.data))
        junk = r.choice((b"\0\0\xc0\x7f", b"\xff" * 16, b"\0\0\x80\xff", bytes(64), r.randbytes(9)))
        g.data = g.data[:at] + junk + g.data[at + len(junk) :]


def _mutate_header(g: Gguf, r: Random) -> None:
    what = r.randrange(6)
    if what == 0:
        g.version = r.choice((0, 1, 2, 4, 1 << 24, (1 << 32) - 1))
    elif what == 1:
        g.lies["n_keys"] = r.choice([n & ((1 << 64) - 1) for n in NUMBERS])
    elif what == 2:
        g.lies["n_tensors"] = r.choice([n & ((1 << 64) - 1) for n in NUMBERS])
    elif what == 3:
        g.magic = r.choice((b"PWRI", b"GGML", b"GGUD", b"\0\0\0\0"))
    else:
        g.data = g.data[: r.randrange(len(g.data) + 1)]


def mutate_bytes(raw: bytes, r: Random) -> bytes:
    """Bytes overwritten, removed, repeated, cut."""
    out = bytearray(raw)
    for _ in range(r.choice((1, 1, 2, 8))):
        if not out:
            return r.randbytes(8)
        at = r.randrange(len(out))
        what = r.randrange(6)
        if what == 0:
            out[at] = r.randrange(256)
        elif what == 1:
            width = r.choice((4, 8))
            number = r.choice(NUMBERS) & ((1 << 8 * width) - 1)
            out[at : at + width] = number.to_bytes(width, "little")
        elif what == 2:
            del out[at : at + r.randrange(1, 40)]
        elif what == 3:
            out[at:at] = out[at : at + r.randrange(1, 60)]
        elif what == 4:
            del out[at:]
        else:
            out[at] ^= 1 << r.randrange(8)
    return bytes(out)


# -- JSON and text ---------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1 << 31, 1 << 63, 1 << 64, -(1 << 63), 0.5, -0.5, 1e308, "",
    "a", "\0", "\ud83d\ude00", "x" * 3000, "json_object", "auto", [], {}, [[]], [None], {"": 0},
    [0] * 300, {"type": "object"}, [{"role": "user", "content": "a"}],
)  # fmt: skip


def mutate_json(tree: Any, r: Random, fields: tuple[str, ...] = ()) -> Any:
    """The tree with one to three nodes changed. fields: names that objects may get."""
    tree = deepcopy(tree)
    for _ in range(r.choice((1, 1, 2, 3))):
        tree = _mutate_node(tree, r, fields)
    return tree


def _mutate_node(node: Any, r: Random, fields: tuple[str, ...]) -> Any:
    if isinstance(node, dict) and r.random() < 0.85:
        if node and r.random() < 0.6:
            key = r.choice(list(node))
            if r.random() < 0.15:
                del node[key]
            else:
                node[key] = _mutate_node(node[key], r, fields)
        else:
            node[r.choice(fields) if fields else "x"] = deepcopy(r.choice(VALUES))
        return node
    if isinstance(node, list) and node and r.random() < 0.8:
        i = r.randrange(len(node))
        what = r.randrange(4)
        if what == 0:
            del node[i]
        elif what == 1:
            node.append(deepcopy(node[i]))
        else:
            node[i] = _mutate_node(node[i], r, fields)
        return node
    if isinstance(node, int) and not isinstance(node, bool) and r.random() < 0.5:
        return r.choice(NUMBERS)
    if isinstance(node, str) and r.random() < 0.5:
        return mutate_text(node, (), r)
    return deepcopy(r.choice(VALUES))


def mutate_text(text: str, pieces: tuple[str, ...], r: Random) -> str:
    """Pieces put in, cut out, repeated, swapped for others."""
    for _ in range(r.choice((1, 2, 3, 5))):
        at, to = sorted((r.randrange(len(text) + 1), r.randrange(len(text) + 1)))
        what = r.randrange(4)
        if what == 0 and pieces:
            text = text[:at] + r.choice(pieces) + text[at:]
        elif what == 1:
            text = text[:at] + text[min(to, at + 20) :]
        elif what == 2:
            text = text[:at] + text[at : at + 30] * r.choice((2, 3, 9)) + text[at:]
        else:
            text = text[:at] + chr(r.choice((0, 10, 34, 39, 92, 123, 125, 0x202E, 0x1F600, 0x301,
                                             *range(32, 127)))) + text[at:]  # fmt: skip
    return text[:20_000]
