"""Types the engine does not compute with, read through the `gguf` package.

IQ*, TQ*, MXFP4, NVFP4 and whatever else that package can dequantize: a tensor of such a type is
turned into float32 at load and then stored as a type that has kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

# Bytes of float32 output at a time; the package's temporaries are several times as large.
_CHUNK_BYTES = 1 << 22


def dequantize_any(ggml_id: int, raw: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Dense rows of the GGUF type numbered `ggml_id` -> float32 of `shape`.

    raw: an array of any type, read as bytes. Raises ValueError for an unknown number or a size that
    does not fit `shape`, NotImplementedError for a type the gguf package cannot dequantize.
    """
    # Imported when first needed: most files hold none of these types.
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

    try:
        kind = GGMLQuantizationType(ggml_id)
    except ValueError:
        raise ValueError(f"element type {ggml_id} is unknown to GGUF") from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    n = shape[-1] if shape else 1
    if n % block:
        raise ValueError(f"{kind.name}: a row of {n} is no multiple of its block of {block}")
    row_bytes = n // block * block_bytes
    buffer = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    n_rows = prod(shape[:-1])
    if buffer.size != n_rows * row_bytes:
        raise ValueError(
            f"{kind.name}: {buffer.size} bytes for shape {list(shape)}, which takes "
            f"{n_rows * row_bytes}"
        )
    rows = buffer.reshape(n_rows, row_bytes)
    out = np.empty((n_rows, n), np.float32)
    step = max(1, _CHUNK_BYTES // max(1, 4 * n))
    with np.errstate(invalid="ignore", over="ignore"):  # a file may hold infinite scales
        for i in range(0, n_rows, step):
            try:
                out[i : i + step] = quants.dequantize(rows[i : i + step], kind)
            except NotImplementedError:
                raise NotImplementedError(
                    f"{kind.name}: this type can be neither computed with nor dequantized"
                ) from None
    return out.reshape(shape)
