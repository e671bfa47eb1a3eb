"""A session on disk: its tokens and the rows of its KV cache, to go on without computing them.

The file: MAGIC, the length of a header as 8 bytes, the header (JSON), the rows of every layer's
keys and values, a BLAKE2b digest of all that. It is there whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from gguflow.engine.backends.base import Buffer
from gguflow.engine.files import whole_file
from gguflow.engine.plan_key import PAGE
from gguflow.models.batch import CacheLayer

from .serving.kv import KvCache
from .serving.pages import OutOfPages

if TYPE_CHECKING:
    from gguflow.engine.model import Model

MAGIC = b"GFSESSN1"
DIGEST = 32
MOST_HEADER = 1 << 28  # bytes; a token takes at most seven
SAMPLE = 4096  # bytes of every weight that go into a model's hash


class SessionFileError(ValueError):
    """A file that holds no session of this model: names it and says why."""


def model_hash(model: Model) -> str:
    """32 hexadecimal digits of what rows of the KV cache depend on: hyperparameters, the
    beginning and end of every weight, and how the model is run."""
    o, h = model.options, blake2b(digest_size=16)
    h.update(repr((model.arch.name, model.hp)).encode())
    h.update(repr((o.sparse, o.sparse_threshold, o.predictor)).encode())
    for name, weight in sorted(model.source.weights.items()):
        data = weight.read().reshape(-1).view(np.uint8)
        h.update(f"{name} {weight.dtype.name} {weight.shape}".encode())
        h.update(data[:SAMPLE].tobytes() + data[-SAMPLE:].tobytes())
    return h.hexdigest()


def save_rows(
    path: str | Path, model: Model, kv: KvCache, states: dict[str, Buffer], seq: int
) -> None:
    """Write a sequence. Raises OSError, and SessionFileError for layers with a recurrent state,
    which one sequence's rows cannot bring back."""
    if kv.states is not None:
        raise SessionFileError(f"{path}: sessions of recurrent models cannot be saved")
    tokens = kv.tokens(seq)
    header = {
        "model": model_hash(model),
        "k_type": model.options.k_type.name,
        "v_type": model.options.v_type.name,
        "tokens": tokens,
        "n_chunked": kv.n_chunked(seq),
        "pages": {
            name: np.flatnonzero(table[seq] >= 0).tolist() for name, table in kv.tables.items()
        },
    }
    text = json.dumps(header, separators=(",", ":")).encode()

    with whole_file(Path(path).expanduser()) as part, open(part, "wb") as f:
        h = blake2b(digest_size=DIGEST)
        for data in (MAGIC, len(text).to_bytes(8, "little"), text):
            f.write(data)
            h.update(data)
        for group, p, name, n_bytes in _parts(model, kv, header, states):
            page = int(kv.tables[group][seq, p])
            rows = states[name].read(page * PAGE * n_bytes, _rows(p, len(tokens)) * n_bytes)
            f.write(rows.tobytes())
            h.update(rows.tobytes())
        f.write(h.digest())


def load_rows(
    path: str | Path,
    model: Model,
    kv: KvCache,
    states: dict[str, Buffer],
    empty: Callable[[], int],
) -> None:
    """Fill a sequence. empty: makes an empty one, once nothing else can be wrong with the file.
    Raises OSError and SessionFileError."""
    path = Path(path).expanduser()
    with open(path, "rb") as f:
        header = _checked(path, f, model)
        tokens: list[int] = header["tokens"]
        if len(tokens) > model.options.n_ctx:
            raise SessionFileError(
                f"{path}: {len(tokens)} tokens, the context holds {model.options.n_ctx}; raise "
                "`n_ctx`"
            )
        where: dict[tuple[str, int], dict[str, int]] = {}
        for group, p, name, n_bytes in _parts(model, kv, header, states):
            where.setdefault((group, p), {})[name] = f.tell()
            f.seek(_rows(p, len(tokens)) * n_bytes, os.SEEK_CUR)
        if f.tell() + DIGEST != os.fstat(f.fileno()).st_size:
            raise SessionFileError(f"{path}: its size does not fit its header")
        seq = empty()
        # A page at a time: what a window has left behind is given back on the way.
        for start in range(0, len(tokens), PAGE):
            part = tokens[start : start + PAGE]
            try:
                kv.grow(seq, len(part))
            except OutOfPages as e:
                raise SessionFileError(f"{path}: {e}") from None
            for group, table in kv.tables.items():
                for name, at in where.get((group, start // PAGE), {}).items():
                    n_bytes = _row_bytes(kv, group, states[name])
                    f.seek(at)
                    data = np.frombuffer(f.read(len(part) * n_bytes), np.uint8)
                    states[name].write(int(table[seq, start // PAGE]) * PAGE * n_bytes, data)
            n = max(0, min(len(part), header["n_chunked"] - start))
            kv.advance(seq, part[:n])
            kv.advance(seq, part[n:], generated=True)


def _checked(path: Path, f: BinaryIO, model: Model) -> dict[str, Any]:
    """The header, after the digest was compared."""
    size = os.fstat(f.fileno()).st_size
    if f.read(len(MAGIC)) != MAGIC:
        raise SessionFileError(f"{path}: not a session of gguflow")
    n = int.from_bytes(f.read(8), "little")
    if not 0 < n <= min(MOST_HEADER, size):
        raise SessionFileError(f"{path}: the file is cut off or damaged")
    h, left = blake2b(digest_size=DIGEST), size - DIGEST
    f.seek(0)
    while left > 0 and (data := f.read(min(left, 1 << 20))):
        h.update(data)
        left -= len(data)
    if f.read() != h.digest():
        raise SessionFileError(f"{path}: the file is cut off or damaged")
    f.seek(len(MAGIC) + 8)
    header = _header(path, f.read(n), model)
    o = model.options
    if header["model"] != model_hash(model):
        raise SessionFileError(f"{path}: the session is another model's")
    if (header["k_type"], header["v_type"]) != (o.k_type.name, o.v_type.name):
        raise SessionFileError(
            f"{path}: keys and values are {header['k_type']} and {header['v_type']}, this model's "
            f"{o.k_type.name} and {o.v_type.name}"
        )
    return header


def _header(path: Path, text: bytes, model: Model) -> dict[str, Any]:
    """What a file says of itself, all of it there and within bounds."""
    try:
        found: dict[str, Any] = json.loads(text)
        tokens, pages = found["tokens"], found["pages"]
        n_chunked, n_vocab = found["n_chunked"], model.hp.n_vocab
        n_pages = -(-len(tokens) // PAGE)
        groups = {layer.group for _, layer in _layers(model)}
        fits = all(type(t) is int and 0 <= t < n_vocab for t in tokens) and all(
            type(p) is int and p >= 0 for group in groups for p in pages[group]
        )
        fits = fits and all(p[:n_pages] == sorted(set(p))[:n_pages] for p in pages.values())
        fits = fits and type(n_chunked) is int and 0 <= n_chunked <= len(tokens)
        fits = fits and all(isinstance(found[k], str) for k in ("model", "k_type", "v_type"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        fits = False
    if not fits:
        raise SessionFileError(f"{path}: its header is damaged")
    return found


def _parts(
    model: Model, kv: KvCache, header: dict[str, Any], states: dict[str, Buffer]
) -> Iterator[tuple[str, int, str, int]]:
    """In the file's order: group, entry of the page table, state, and bytes of a row."""
    for i, layer in _layers(model):
        for name in (f"kv.{i}.{x}" for x, n in (("k", layer.n_k), ("v", layer.n_v)) if n):
            if name not in states:
                raise SessionFileError(
                    "a session of a model whose layers are cut over devices (`split_mode=tensor`) "
                    "cannot be saved or loaded"
                )
            for p in header["pages"][layer.group]:
                if p * PAGE < len(header["tokens"]):
                    yield layer.group, p, name, _row_bytes(kv, layer.group, states[name])


def _layers(model: Model) -> Iterator[tuple[int, CacheLayer]]:
    for i in range(model.hp.n_layer):
        layer = model.arch.cache(i)
        if isinstance(layer, CacheLayer):
            yield i, layer


def _row_bytes(kv: KvCache, group: str, state: Buffer) -> int:
    return state.nbytes // (kv.pools[group].n_pages * PAGE)


def _rows(p: int, n_tokens: int) -> int:
    """Rows of page p that tokens have."""
    return min(PAGE, n_tokens - p * PAGE)
