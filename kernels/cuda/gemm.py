"""A matrix product that a library does: D = A B^T (+ C) on rows of 16- or 32-bit floats.

A launch file returns a `Gemm` among its launches; the backend runs it with cuBLASLt.
"""

from __future__ import annotations

from dataclasses import dataclass

WORKSPACE_BYTES = 32 << 20  # what cuBLAS recommends on Hopper; smaller means fewer algorithms


@dataclass(frozen=True)
class Matrix:
    """Rows in device memory: address of the first, elements between rows and between batches."""

    address: int
    ld: int
    batch_stride: int = 0


@dataclass(frozen=True)
class Gemm:
    """d[b, j, i] = sum_k x[b, j, k] w[b, i, k] (+ c[b, j, i]), summed in float32.

    dtype: of w and x (f32, f16 or bf16); out: of d and c. w has n rows and x m, of k elements each.
    w_rows: "k" where w has k rows of n elements instead: w[b, k, i].
    whole: no parts of k, whatever the columns, though it may be slower: one order of sums.
    workspace: WORKSPACE_BYTES of device memory.
    """

    dtype: str
    out: str
    n: int
    m: int
    k: int
    w: Matrix
    x: Matrix
    d: Matrix
    workspace: int
    c: Matrix | None = None
    batch: int = 1
    w_rows: str = "n"
    whole: bool = False

    @property
    def d_bytes(self) -> int:
        """From the first of d to behind the last."""
        size = 2 if self.out in ("f16", "bf16") else 4
        last = (self.batch - 1) * self.d.batch_stride + (self.m - 1) * self.d.ld
        return size * (last + self.n)

    @property
    def name(self) -> str:
        """What a profile calls it."""
        return f"cublas_{self.dtype}"
