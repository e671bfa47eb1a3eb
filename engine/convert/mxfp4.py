"""MXFP4 as transformers stores it: bytes of two neighbours' codes, and exponents in a tensor of
their own. GGUF's blocks have the exponent first, then in a byte elements 16 apart."""

from __future__ import annotations

import numpy as np

from gguflow.engine.graph import dtype_by_name

from .checkpoint import Checkpoint, ConvertError
from .family import Weight

BLOCKS, SCALES = "_blocks", "_scales"


def mxfp4(name: str, source: Checkpoint) -> Weight:
    """The tensor whose bytes are `name`: uint8 [.., n, k / 32, 16]. Raises ConvertError where its
    exponents are missing or do not fit."""
    stem = name.removesuffix(BLOCKS)
    blocks, scales = source.tensors[name], source.tensors.get(stem + SCALES)
    fits = scales is not None and blocks.shape == (*scales.shape, 16) and len(scales.shape) >= 2
    if not fits or any(t is None or t.dtype.nbytes != 1 for t in (blocks, scales)):
        raise ConvertError(
            f"{source.path}: {name} {list(blocks.shape)} has no exponents {stem}{SCALES} of its "
            "own shape"
        )
    assert scales is not None
    *rows, n_blocks = scales.shape

    def make() -> np.ndarray:
        pairs = blocks.values().view(np.uint8)
        codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*scales.shape, 32)
        packed = codes[..., :16] | (codes[..., 16:] << 4)
        exponents = scales.values().view(np.uint8)[..., None]
        return np.concatenate([exponents, packed], axis=-1).reshape(*rows, n_blocks * 17)

    return Weight(stem, dtype_by_name("mxfp4"), (*rows, n_blocks * 32), make)
