"""What several ops share: type lists, the layout check, tolerances of rounded results."""

from __future__ import annotations

import numpy as np

from ..graph import Shape, Tensor, dtype_by_name

FLOATS = ("f32", "f16", "bf16")
LEGACY_QUANTS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
K_QUANTS = ("q2_K", "q3_K", "q4_K", "q5_K", "q6_K")
QUANTS = LEGACY_QUANTS + K_QUANTS
# Values from a table of sixteen, and ternary ones; rows of grids, which are only read.
TABLE_QUANTS = ("iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "tq1_0", "tq2_0")
GRID_QUANTS = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")

# NMSE allowed when both sides round a result to this type: about a tenth of what rounding normal
# values costs, for those few that lie on the edge between two codes and fall either way.
ROUNDED = {
    "f32": 1e-7,
    "f16": 1e-8,
    "bf16": 3e-7,
    "q8_0": 3e-6,
    "q5_0": 2e-4,
    "q5_1": 2e-4,
    "q4_0": 7e-4,
    "q4_1": 6e-4,
    "q2_K": 8e-3,
    "q3_K": 2e-3,
    "q4_K": 5e-4,
    "q5_K": 1e-4,
    "q6_K": 3e-5,
    "iq4_nl": 5e-4,
    "iq4_xs": 5e-4,
    "mxfp4": 2e-3,
    "nvfp4": 1e-3,
    "tq1_0": 5e-2,
    "tq2_0": 5e-2,
}


def block_of(dtype: str) -> int:
    """Elements a block of the type called `dtype`, for the sizes of test cases."""
    if dtype == "nvfp4":
        return 64
    if dtype in (*LEGACY_QUANTS, "iq4_nl", "mxfp4"):
        return 32
    return 256 if dtype in (*K_QUANTS, *TABLE_QUANTS, *GRID_QUANTS) else 1


def aligned_length(dtype: str, least: int = 1) -> int:
    """The shortest row of `least` elements or more, for test cases, whose bytes are whole 16."""
    t, block = dtype_by_name(dtype), block_of(dtype)
    n = -(-least // block) * block
    while t.row_bytes(n) % 16:
        n += block
    return n


def positive(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Test data for products of few results: their sums do not cancel, so an NMSE means something
    when a kernel rounds the operands."""
    return rng.uniform(0.5, 1.5, shape)


def scaled(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Test weights of 1/sqrt(k): a product of deviation one, where silu is neither linear nor
    flat."""
    return rng.standard_normal(shape) / np.sqrt(shape[-1])


def rows_dense(t: Tensor) -> bool:
    """True when neighbours along the innermost dimension are neighbours in memory."""
    return not t.shape or t.shape[-1] <= t.dtype.block or t.strides[-1] == t.dtype.nbytes


def is_floating(t: Tensor) -> bool:
    """True for f32, f16 and bf16."""
    return t.dtype.name in FLOATS


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x), in float64."""
    return x * sigmoid(x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) in float64, with no overflow at large negative x."""
    x = x.astype(np.float64)
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def gelu(x: np.ndarray) -> np.ndarray:
    """The tanh form of GELU (Hendrycks and Gimpel 2016), in float64."""
    x = x.astype(np.float64)
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def alibi_slopes(n_head: int, max_bias: float) -> np.ndarray:
    """ALiBi's slope a head, float64 [n_head]; ones when max_bias is 0.

    Press et al. 2021 for a power of two; other head counts interleave the next power's slopes, as
    ggml does: with p the largest power of two <= n_head, head h has 2^(-max_bias (h+1) / p) below
    p and 2^(-max_bias (2(h-p)+1) / (2p)) from p on.
    """
    if max_bias <= 0 or n_head == 0:
        return np.ones(n_head)
    p = 1 << (n_head.bit_length() - 1)
    h = np.arange(n_head)
    return np.where(
        h < p, 2.0 ** (-max_bias * (h + 1) / p), 2.0 ** (-max_bias * (2 * (h - p) + 1) / (2 * p))
    )
