"""Activation statistics: for how many tokens of a text each neuron fires.

A neuron of layer N fires for a token when its gate, `blk.N.ffn.gate`, is above what ReLU makes zero
(and where up goes through a ReLU as well, that too); where there is no gate, up. In a file: GGUF,
one i64 tensor `blk.N.activations` [n_ff] a layer, and keys `activations.model_hash` and
`activations.n_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from gguflow.engine.dataclass import dataclass
from gguflow.engine.gguf import GgufError, GgufFile
from gguflow.engine.gguf.keys import INT64_MAX
from gguflow.engine.graph import I64

FORMAT = "activations"
KNOWN_TOKENS = 1 << 20  # that a known probability is turned into a count of


@dataclass(frozen=True)
class Activations:
    """counts: i64 [n_ff] a layer, tokens for which each neuron fired, of `n_tokens`."""

    counts: tuple[np.ndarray, ...]
    n_tokens: int
    model_hash: str

    @property
    def probabilities(self) -> tuple[np.ndarray, ...]:
        """float64 [n_ff] a layer: the share of tokens for which each neuron fires."""
        return tuple(c / self.n_tokens for c in self.counts)

    @property
    def active_fraction(self) -> np.ndarray:
        """float64 [n_layer]: the mean share of a layer's neurons that fire for a token."""
        return np.array([c.mean() / self.n_tokens for c in self.counts])

    @property
    def hash(self) -> str:
        """16 hexadecimal digits of the counts."""
        h = blake2b(str(self.n_tokens).encode(), digest_size=8)
        for c in self.counts:
            h.update(np.ascontiguousarray(c, np.int64).tobytes())
        return h.hexdigest()


def from_probabilities(probabilities: Sequence[np.ndarray], model_hash: str) -> Activations:
    """The counts that known probabilities stand for: those of random weights made by them."""
    counts = tuple(np.rint(p * KNOWN_TOKENS).astype(np.int64) for p in probabilities)
    return Activations(counts, KNOWN_TOKENS, model_hash)


def hottest(probability: np.ndarray, share: float = 0.8) -> float:
    """The least fraction of neurons that makes up `share` of the activations; PowerInfer's measure
    of locality."""
    p = np.sort(probability)[::-1].astype(np.float64)
    total = p.sum()
    if not total:
        return 0.0
    return float(np.searchsorted(np.cumsum(p), share * total - 1e-12 * total) + 1) / len(p)


def deciding(arch: Any) -> tuple[str, ...]:
    """The products of an architecture's layers whose sign decides whether a neuron fires."""
    if not arch.gated:
        return ("up",)
    return ("gate", "up") if arch.relu_up else ("gate",)


def write_stats(path: str | Path, stats: Activations) -> None:
    """Write a file. Raises GgufError when it cannot be written."""
    from gguflow.engine.gguf import write_gguf  # with the gguf package, which a run does not need

    write_gguf(
        path,
        {
            "general.architecture": FORMAT,
            f"{FORMAT}.model_hash": stats.model_hash,
            f"{FORMAT}.n_tokens": stats.n_tokens,
        },
        {f"blk.{i}.{FORMAT}": (I64, c.shape, c) for i, c in enumerate(stats.counts)},
    )


def read_stats(path: str | Path) -> Activations:
    """Read a file back. Raises GgufError naming file and field for what is no such file."""
    f = GgufFile.open(path)
    if (found := f.keys.text("general.architecture", None)) != FORMAT:
        raise GgufError(str(path), "key general.architecture", repr(found), repr(FORMAT))
    n_tokens = f.keys.integer(f"{FORMAT}.n_tokens", least=1, most=INT64_MAX)
    names = [f"blk.{i}.{FORMAT}" for i in range(len(f.tensors))]
    counts = []
    for name in names:
        if name not in f.tensors:
            raise GgufError(str(path), f"tensor {name}", "no such tensor", "one a layer")
        c = f.array(name)
        where = f"tensor {name}"
        if c.dtype != np.int64 or c.ndim != 1 or c.shape != f.array(names[0]).shape:
            raise GgufError(str(path), where, f"{c.dtype} {list(c.shape)}", "i64 [n_ff] each")
        if c.min(initial=0) < 0 or c.max(initial=0) > n_tokens:
            raise GgufError(str(path), where, "counts", f"0 to {n_tokens}, the number of tokens")
        counts.append(c)
    if not counts:
        raise GgufError(str(path), "tensors", "none", f"blk.0.{FORMAT} and so on")
    return Activations(tuple(counts), n_tokens, f.keys.text(f"{FORMAT}.model_hash"))
