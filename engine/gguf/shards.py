"""Models split over several files, `x-00001-of-00003.gguf`: which files, and do they fit."""

from __future__ import annotations

import os
import re

from .errors import GgufError
from .header import Header
from .keys import INT32_MAX, KeyReader
from .values import kind_matches

_NAME = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
MOST = 99_999  # shards; a name has five digits
_COUNT, _NO, _TENSORS = "split.count", "split.no", "split.tensors.count"


def _split_key(path: str, header: Header, key: str, most: int = MOST) -> int:
    kind = header.types.get(key)
    if kind is None or not kind_matches(kind, "int"):
        raise GgufError(path, f"key {key!r}", kind or "no such key", "int")
    return KeyReader(header.metadata, path).integer(key, most=most)


def shard_paths(path: str, header: Header) -> list[str]:
    """All files of the model that the file at `path` belongs to, the first one first.

    The header says how many there are; their names follow from this one's.
    """
    if _COUNT not in header.metadata or (count := _split_key(path, header, _COUNT)) == 1:
        return [path]
    match = _NAME.fullmatch(path)
    if match is None or int(match["count"]) != count or not count:
        name = os.path.basename(path)
        raise GgufError(
            path,
            "file name",
            repr(name),
            f"...-00001-of-{count:05d}.gguf, one of {count} shards as its key {_COUNT!r} says",
        )
    return [f"{match['stem']}-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]


def check_shards(paths: list[str], headers: list[Header]) -> None:
    """Fail unless each shard says it is the one its name says, and all tensors are there."""
    if len(paths) == 1:
        return
    for i, (path, header) in enumerate(zip(paths, headers, strict=True)):
        for key, expected in ((_COUNT, len(paths)), (_NO, i)):
            if (found := _split_key(path, header, key)) != expected:
                raise GgufError(path, f"key {key!r}", found, expected)
    expected = _split_key(paths[0], headers[0], _TENSORS, most=INT32_MAX)
    n_tensors = sum(len(h.tensors) for h in headers)
    if n_tensors != expected:
        raise GgufError(
            paths[0],
            f"key {_TENSORS!r}",
            expected,
            f"{n_tensors}, the tensors in all {len(paths)} shards",
        )
