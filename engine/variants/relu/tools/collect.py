"""Recording what activity predictors learn from: layers' inputs, and which neurons fired."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gguflow.engine.load import ModelSource
from gguflow.engine.model import Model
from gguflow.engine.quants import decode
from gguflow.engine.taps import tapped

GROUP_BYTES = 3 << 30  # of recorded values in memory at a time; layers beyond it take another run


def layer_taps(arch: Any, i: int) -> tuple[str, str]:
    """The nodes of layer i's input before its norm, and of its neurons, act(gate) * act(up) or
    act(up)."""
    return arch.layer_input(i), f"blk.{i}.ffn.{'reglu' if arch.gated else 'act'}"


def record(
    model: Model,
    chunks: Sequence[Sequence[int]],
    each: Callable[[int], None] | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Layer by layer what it saw on token sequences, computed densely: inputs float32
    [n, n_embd] and contributions float16 [n, n_ff] (see `contributions`).

    As many layers as GROUP_BYTES hold are recorded in one run over the tokens. each: called with
    the number of tokens that a run has done so far.
    """
    hp = model.hp
    n = sum(map(len, chunks))
    size = max(1, min(hp.n_layer, GROUP_BYTES // (n * (4 * hp.n_embd + 2 * hp.n_ff))))
    for first in range(0, hp.n_layer, size):
        layers = range(first, min(first + size, hp.n_layer))
        taps = [t for i in layers for t in layer_taps(model.arch, i)]
        found = [
            (np.empty((n, hp.n_embd), np.float32), np.empty((n, hp.n_ff), np.float16))
            for _ in layers
        ]
        reach = [down_norms(model.source, i) for i in layers]
        row = 0
        for values in tapped(model, taps, chunks, sparse="off"):
            rows = slice(row, row + len(values[0]))
            row = rows.stop
            for k, (x, share) in enumerate(found):
                x[rows] = values[2 * k]
                share[rows] = contributions(values[2 * k + 1], reach[k])
            if each:
                each(row)
        while found:
            yield found.pop(0)


def contributions(hidden: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """How much each neuron adds to its layer's output: float16 [n, n_ff], 0 where none fires.

    hidden: float [n, n_ff] act(gate) * act(up); reach: [n_ff] norms of the rows of the transposed
    down matrix. In units of the token's mean over its firing neurons, and never below 1e-4, so
    that float16 keeps which ones fired.
    """
    share = np.abs(hidden) * reach
    fires = hidden != 0
    mean = share.sum(-1, keepdims=True) / np.maximum(fires.sum(-1, keepdims=True), 1)
    share /= np.maximum(mean, 1e-30)
    return np.where(fires, np.clip(share, 1e-4, 1e4), 0).astype(np.float16)


def down_norms(source: ModelSource, i: int) -> np.ndarray:
    """The L2 norm of what each neuron of layer i writes: float32 [n_ff]."""
    name = f"blk.{i}.ffn_down"
    by_row = f"{name}_t.weight" in source.weights
    w = source.weights[f"{name}_t.weight" if by_row else f"{name}.weight"]
    matrix = decode(w.dtype, w.read(), w.shape)
    return np.linalg.norm(matrix, axis=-1 if by_row else 0).astype(np.float32)
