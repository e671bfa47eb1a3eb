"""A session on disk: its tokens and the rows of its KV cache, to go on without computing them.

The file: MAGIC, the length of a header as 8 bytes, the header (JSON), the rows of every layer's
keys and values, of recurrent layers the state that was copied last and the state as it is, a
BLAKE2b digest of all that. It is there whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from gguflow.engine.backends.base import Buffer
from gguflow.engine.files import whole_file
from gguflow.engine.opened import open_file
from gguflow.engine.plan_key import PAGE, STATES
from gguflow.models.batch import CacheLayer, StateLayer

from .serving.kv import KvCache
from .serving.pages import OutOfPages

if TYPE_CHECKING:
    from gguflow.engine.model import Model

MAGIC = b"GFSESSN2"
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
    """Write a sequence. Raises OSError."""
    tokens, copied = kv.tokens(seq), kv.last_copy(seq)
    header = {
        "model": model_hash(model),
        "k_type": model.options.k_type.name,
        "v_type": model.options.v_type.name,
        "tokens": tokens,
        "n_chunked": kv.n_chunked(seq),
        "n_copied": 0 if copied is None else copied[0],
        "states": _sizes(model, kv, states),
        "pages": {
            name: np.flatnonzero(table[seq] >= 0).tolist() for name, table in kv.tables.items()
        },
    }
    text = json.dumps(header, separators=(",", ":")).encode()

    with whole_file(Path(path).expanduser()) as part, open(part, "wb") as f:
        h = blake2b(digest_size=DIGEST)

        def put(data: bytes) -> None:
            f.write(data)
            h.update(data)

        for data in (MAGIC, len(text).to_bytes(8, "little"), text):
            put(data)
        for group, p, name, n_bytes in _parts(model, header):
            page = int(kv.tables[group][seq, p])
            rows = states[name].read(page * PAGE * n_bytes, _rows(p, len(tokens)) * n_bytes)
            put(rows.tobytes())
        if kv.states is not None:
            slots = [kv.states.slot(seq)] if copied is None else [copied[1], kv.states.slot(seq)]
            for slot in slots:
                for name, n_bytes in _slots(model, header):
                    put(states[name].read(slot * n_bytes, n_bytes).tobytes())
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
    with open_file(path, regular=True) as f:
        header = _checked(path, f, model, _sizes(model, kv, states))
        tokens: list[int] = header["tokens"]
        n_copied: int = header["n_copied"]
        if len(tokens) > model.options.n_ctx:
            raise SessionFileError(
                f"{path}: {len(tokens)} tokens, the context holds {model.options.n_ctx}; raise "
                "`n_ctx`"
            )
        where: dict[tuple[str, int], list[tuple[str, int, int]]] = {}
        for group, p, name, n_bytes in _parts(model, header):
            where.setdefault((group, p), []).append((name, n_bytes, f.tell()))
            f.seek(_rows(p, len(tokens)) * n_bytes, os.SEEK_CUR)
        slots = [*_slots(model, header)]
        at, n_slot = f.tell(), sum(n_bytes for _, n_bytes in slots)
        if at + n_slot * (1 + (n_copied > 0)) + DIGEST != os.fstat(f.fileno()).st_size:
            raise SessionFileError(f"{path}: its size does not fit its header")

        def bring(name: str, to: int, at: int, n_bytes: int) -> None:
            f.seek(at)
            states[name].write(to, np.frombuffer(f.read(n_bytes), np.uint8))

        def bring_state(at: int) -> None:
            assert kv.states is not None
            for name, n_bytes in slots:
                bring(name, kv.states.slot(seq) * n_bytes, at, n_bytes)
                at += n_bytes

        seq = empty()
        # A page at a time: what a window has left behind is given back on the way.
        for start in range(0, len(tokens), PAGE):
            part = tokens[start : start + PAGE]
            try:
                kv.grow(seq, len(part))
            except OutOfPages as e:
                raise SessionFileError(f"{path}: {e}") from None
            for group, table in kv.tables.items():
                page = int(table[seq, start // PAGE])
                for name, n_bytes, rows in where.get((group, start // PAGE), ()):
                    bring(name, page * PAGE * n_bytes, rows, len(part) * n_bytes)
            n = max(0, min(len(part), header["n_chunked"] - start))
            is_copied = start + len(part) == n_copied
            if is_copied:
                bring_state(at)
            kv.advance(seq, part[:n], sealed=False)
            kv.advance(seq, part[n:], generated=True, sealed=is_copied)
        if slots:
            bring_state(at + n_slot * (n_copied > 0))


def _checked(
    path: Path, f: BinaryIO, model: Model, sizes: Mapping[str, int]
) -> dict[str, Any]:  # fmt: skip
    """The header, after the digest was compared. sizes: as in `_sizes`."""
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
    if header["states"] != sizes:
        raise SessionFileError(f"{path}: its layers are cut over devices in another way")
    return header


def _header(path: Path, text: bytes, model: Model) -> dict[str, Any]:
    """What a file says of itself, all of it there and within bounds."""
    try:
        found: dict[str, Any] = json.loads(text)
        tokens, pages = found["tokens"], found["pages"]
        n_chunked, n_copied, n_vocab = found["n_chunked"], found["n_copied"], model.hp.n_vocab
        n_pages = -(-len(tokens) // PAGE)
        all_groups = {layer.group for _, layer in _layers(model)}
        groups = all_groups - {STATES}
        fits = all(type(t) is int and 0 <= t < n_vocab for t in tokens) and all(
            type(p) is int and p >= 0 for group in groups for p in pages[group]
        )
        fits = fits and all(p[:n_pages] == sorted(set(p))[:n_pages] for p in pages.values())
        fits = fits and type(n_chunked) is int and 0 <= n_chunked <= len(tokens)
        fits = fits and type(n_copied) is int and 0 <= n_copied <= len(tokens) // PAGE * PAGE
        fits = fits and n_copied % PAGE == 0 and (not n_copied or STATES in all_groups)
        fits = fits and isinstance(found["states"], dict)
        fits = fits and all(isinstance(found[k], str) for k in ("model", "k_type", "v_type"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        fits = False
    if not fits:
        raise SessionFileError(f"{path}: its header is damaged")
    return found


def _sizes(model: Model, kv: KvCache, states: Mapping[str, Buffer]) -> dict[str, int]:
    """Bytes of a row of every state, of a slot where the layer is recurrent; of a layer that is cut
    over devices every part's, `kv.3.k@0` and so on."""
    n_rows = {name: pool.n_pages * PAGE for name, pool in kv.pools.items()}
    if kv.states is not None:
        n_rows[STATES] = kv.states.pool.n_pages
    return {
        name: states[name].nbytes // n_rows[layer.group]
        for i, layer in _layers(model)
        for name in sorted(states)
        if name.split(".")[1] == str(i)
    }


def _parts(model: Model, header: Mapping[str, Any]) -> Iterator[tuple[str, int, str, int]]:
    """In the file's order: group, entry of the page table, state, and bytes of a row."""
    for name, n_bytes, layer in _states(model, header):
        if layer.group != STATES:
            for p in header["pages"][layer.group]:
                if p * PAGE < len(header["tokens"]):
                    yield layer.group, p, name, n_bytes


def _slots(model: Model, header: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The states of recurrent layers in the file's order, and bytes of a slot."""
    for name, n_bytes, layer in _states(model, header):
        if layer.group == STATES:
            yield name, n_bytes


def _states(
    model: Model, header: Mapping[str, Any]
) -> Iterator[tuple[str, int, CacheLayer | StateLayer]]:
    for name, n_bytes in header["states"].items():
        layer = model.arch.cache(int(name.split(".")[1]))
        assert layer is not None
        yield name, n_bytes, layer


def _layers(model: Model) -> Iterator[tuple[int, CacheLayer | StateLayer]]:
    for i in range(model.hp.n_layer):
        layer = model.arch.cache(i)
        if layer is not None:
            yield i, layer


def _rows(p: int, n_tokens: int) -> int:
    """Rows of page p that tokens have."""
    return min(PAGE, n_tokens - p * PAGE)
