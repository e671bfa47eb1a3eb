"""Random weights whose neurons fire as those of a trained ReLU model do, to measure speed with.

Each neuron fires with a probability of its own: a tenth on average, by a power law under which the
hottest 26 % of them make up 80 % of the activity (what Song et al. 2023, arXiv 2312.12456, section
3, found for LLaMA-70B with ReLU). Hot and cold ones lie mixed. Gate and predictor agree, so that
predicting, computing the gate and running densely give the same result.

How: an embedding is `level` on its first columns and random on the rest. The gate of neuron j is
c_j on those first columns, and on the rest one of POOL combinations, of length one, of the random
directions F. So its product with an embedding is level c_j plus something normal of deviation one:
positive with the probability of which c_j is the normal quantile. The predictor holds the same in
factors: fc1 is F, minus F, and the first columns' mean, since relu(Fx) - relu(-Fx) = Fx; fc2 is the
combinations. What attention and the feed-forward layers add is made small, so that the embedding of
the token decides which neurons fire, in every layer others.
"""

from __future__ import annotations

import re
from functools import cache
from statistics import NormalDist

import numpy as np

from gguflow.engine.graph import DType
from gguflow.engine.quants import encode

from .base import HParams

MEAN, HOT, HOT_SHARE = 0.1, 0.26, 0.8
MOST = 0.999  # a neuron's probability, so that its quantile is finite
POOL = 512  # combinations that the neurons of a layer share
TOKENS = 2048  # embeddings that the vocabulary shares
SMALL = 0.02  # scale of what the layers add to the residual stream
BLOCK = 32  # columns of fc2 for the first columns' mean: a block of their own in quantized types

_PARTS = re.compile(r"blk\.(\d+)\.(ffn_gate|fc1|fc2)\.weight")
_SMALL = re.compile(r"blk\.\d+\.(attn_output|ffn_down(_t)?)\.weight")


@cache
def _power_law() -> tuple[float, float]:
    """(C, a) of p(x) = min(MOST, C x^-a), x the rank from 0 to 1, of the mean and share wanted."""
    x = (np.arange(100_000) + 0.5) / 100_000

    def curve(a: float) -> tuple[float, np.ndarray]:
        low, high, powers = 1e-6, 1.0, x**-a
        for _ in range(60):
            c = (low * high) ** 0.5
            p = np.minimum(MOST, c * powers)
            low, high = (c, high) if p.mean() < MEAN else (low, c)
        return c, p

    low, high = 0.1, 3.0
    for _ in range(40):
        a = (low + high) / 2
        c, p = curve(a)
        share = p[: int(HOT * len(p))].sum() / p.sum()
        low, high = (a, high) if share < HOT_SHARE else (low, a)
    return c, a


def probability(hp: HParams, layer: int) -> np.ndarray:
    """How probable it is that each neuron of a layer fires, float64 [n_ff]."""
    c, a = _power_law()
    ranks = (np.arange(hp.n_ff) + 0.5) / hp.n_ff
    p = np.minimum(MOST, c * ranks**-a)
    return p[np.random.default_rng([layer, 26, 80]).permutation(hp.n_ff)]


def _level(hp: HParams) -> int:
    """The columns an embedding is constant on: whole blocks of every type."""
    return 256 if hp.n_embd >= 1024 else max(hp.n_embd // 4 // 32 * 32, min(32, hp.n_embd // 2))


def _directions(hp: HParams, rank: int, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """F, float32 [r, n_embd - level], and the combinations of its rows, [POOL, r]; rows of length
    one. r: as many directions as a predictor of this rank can hold."""
    r = (rank - min(BLOCK, rank // 2)) // 2
    rng = np.random.default_rng([layer, rank, 1])
    n = hp.n_embd - _level(hp)
    return _unit(rng.standard_normal((r, n), np.float32)), _unit(
        rng.standard_normal((POOL, r), np.float32)
    )


def _unit(x: np.ndarray) -> np.ndarray:
    unit: np.ndarray = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return unit


def _quantiles(hp: HParams, layer: int) -> np.ndarray:
    p, inverse = probability(hp, layer), NormalDist().inv_cdf
    values, which = np.unique(p, return_inverse=True)
    return np.array([inverse(v) for v in values], np.float32)[which]


def planted(
    hp: HParams, rank: int, name: str, shape: tuple[int, ...], dtype: DType
) -> np.ndarray | None:
    """uint8 bytes of a tensor that has a part in this; None for the others.

    rank: of the predictors, the same for all layers.
    """
    if name == "token_embd.weight":
        return _embeddings(hp, shape, dtype)
    found = _PARTS.fullmatch(name)
    if found:
        layer, part = int(found[1]), found[2]
        make = {"ffn_gate": _gate, "fc1": _fc1, "fc2": _fc2}[part]
        return make(hp, rank, layer, dtype)
    return None


def scale(name: str) -> float:
    """What a tensor's random values are multiplied by."""
    return SMALL if _SMALL.fullmatch(name) else 1.0


def _embeddings(hp: HParams, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    n = min(TOKENS, shape[0])
    x = np.random.default_rng([7, n]).standard_normal((n, shape[1]), np.float32)
    x[:, : _level(hp)] = 1.0
    rows = _rows(dtype, x)
    return np.resize(rows, (shape[0], rows.shape[1])).reshape(-1)


def _gate(hp: HParams, rank: int, layer: int, dtype: DType) -> np.ndarray:
    directions, pool = _directions(hp, rank, layer)
    level = _level(hp)
    constant = np.repeat(_quantiles(hp, layer)[:, None] / level, level, axis=1)
    noise = _unit(pool @ directions)
    # Encoded apart: the first columns are blocks of their own, and the rest has few distinct rows.
    which = np.arange(hp.n_ff) % POOL
    return np.concatenate([_rows(dtype, constant), _rows(dtype, noise)[which]], axis=1).reshape(-1)


def _fc1(hp: HParams, rank: int, layer: int, dtype: DType) -> np.ndarray:
    directions, _ = _directions(hp, rank, layer)
    r, level = len(directions), _level(hp)
    x = np.zeros((rank, hp.n_embd), np.float32)
    x[:r, level:] = directions
    x[r : 2 * r, level:] = -directions
    x[2 * r :, :level] = 1.0 / level
    return _rows(dtype, x).reshape(-1)


def _fc2(hp: HParams, rank: int, layer: int, dtype: DType) -> np.ndarray:
    directions, pool = _directions(hp, rank, layer)
    r = len(directions)
    # The gate's combinations have length one after the product with F, these as well.
    pool = pool / np.linalg.norm(pool @ directions, axis=-1, keepdims=True)
    noise = pool[np.arange(hp.n_ff) % POOL]
    c = np.repeat(_quantiles(hp, layer)[:, None] / (rank - 2 * r), rank - 2 * r, axis=1)
    return _rows(dtype, np.concatenate([noise, -noise, c], axis=1)).reshape(-1)


def _rows(dtype: DType, x: np.ndarray) -> np.ndarray:
    """uint8 [rows, row bytes]."""
    return encode(dtype, np.ascontiguousarray(x, np.float32)).view(np.uint8).reshape(len(x), -1)
