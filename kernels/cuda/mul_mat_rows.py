"""Launches mul_mat_rows.cu: what surrounds a matrix product."""

from __future__ import annotations

import struct
from dataclasses import replace

from gguflow.engine.graph import Role, Tensor

from .elementwise import cpp_bool
from .launch import Kernel, Launch, Operand, ceil_div, pack

_SOURCE = "mul_mat_rows.cu"
_THREADS = 256
_PART = 2048  # elements of a row that one block does, where a row may be divided
_FINISHED = 256  # elements of a row that one warp adds to


def round_launch(dtype: str, x: Operand, to: int, scales: int, value: Tensor | None) -> Launch:
    """The rows of x as dense rows of f16, with a scale each, or of bf16. value: what x holds."""
    if value is not None and value.owner.role is Role.STATE:
        value = None  # it may change between two ops that read it
    scaled = dtype == "f16"
    wide = x.ne[0] % 4 == 0 and not any(b % 16 for b in (x.address, *x.nb[1:]))
    parts = 1 if scaled else ceil_div(x.ne[0], _PART)
    kernel = Kernel(_SOURCE, f"round_rows<{dtype}, {cpp_bool(scaled)}, {4 if wide else 1}>")
    args = pack(x, struct.pack("@2P", to, scales if scaled else 0))
    return Launch(kernel, (x.rows, parts, 1), (_THREADS, 1, 1), args, leaves=value)


def repeated(r: Operand, ne: tuple[int, ...]) -> Operand:
    """r with lengths ne: a dimension of length one is repeated."""
    nb = tuple(s if n > 1 else 0 for n, s in zip(r.ne, r.nb, strict=True))
    return replace(r, ne=ne, nb=nb)


def finish_launch(dst: Operand, r: Operand | None, scales: int, added: bool = False) -> Launch:
    """dst = dst * scale + r; added: dst already contains r."""
    r = None if r is None else repeated(r, dst.ne)
    args = pack(dst, r, struct.pack("@Pq", scales, added))
    # Where r is there already, hardly any row has anything left to do.
    parts = 1 if added or r is None else ceil_div(dst.ne[0], _FINISHED)
    grid = (ceil_div(dst.rows, _THREADS // 32), parts, 1)
    return Launch(Kernel(_SOURCE, "finish_rows"), grid, (_THREADS, 1, 1), args)


def gate_launch(
    dst: Operand, gate: int, up: int, dtype: str, scales: int, rough: bool = False
) -> Launch:
    """dst = silu(gate * scale) * (up * scale) of dense rows of `dtype`. rough: with the silu of
    mul_mat_tma.cu."""
    n = dst.ne[0]
    width = 8 if n % 8 == 0 and dst.address % 32 == 0 else 1
    kernel = Kernel(_SOURCE, f"gate_rows<{dtype}, {width}, {cpp_bool(rough)}>")
    args = struct.pack("@4Pq", dst.address, gate, up, scales, n)
    return Launch(kernel, (dst.rows, ceil_div(n, _PART), 1), (_THREADS, 1, 1), args)
