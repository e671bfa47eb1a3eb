"""Launches mul_mat_integers.cu: quantized weights times many columns, with the bits that a column
has alone and among a few. On Hopper, with `DeviceInfo.equal_bits`."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import gcd

from gguflow.engine.graph import DType

from .columns import Layout, Product, arguments, columns_ok, rows_ok
from .columns_int8 import CHUNK, known, sums_of
from .launch import DeviceInfo, Kernel, Launch, ceil_div, cpp_type, pack

_SOURCE = "mul_mat_integers.cu"
# Its products exist for this target alone, which the devices of `sm_90` run.
_OPTIONS = ("-arch=sm_90a",)
_COLUMNS = (32, 64)  # a block may have
_THREADS, _ROWS, _CONSUMERS, _TILE_K = 384, 128, 256, 64  # as in the .cu
_CLUSTER, _QUARTERS = 2, 4  # blocks that have columns in common; of k
_NUMBERS = 3  # of a block of a column
_MAX_STAGES, _X_STAGES = 6, (3, 4, 6, 8)
_BYTE_MASKS = (0xF0F0F0F0, 0x0F0F0F0F)
_NO_ROPE = bytes(40)


def _columns(m: int) -> int:
    """Of a block."""
    return next((n for n in _COLUMNS if n >= m), _COLUMNS[-1])


def _chunk_bytes(t: DType) -> int:
    return CHUNK // t.block * t.nbytes


def _stride(t: DType) -> int:
    """Bytes from row to row of a stage: `STRIDE` of columns_weights.cuh."""
    nbytes = _chunk_bytes(t)
    pieces = nbytes // 16 if nbytes % 16 == 0 else ceil_div(nbytes + 15, 16)
    return (pieces | 1) * 16


def _stages(t: DType, n: int, device: DeviceInfo) -> tuple[int, int, int]:
    """(stages of weights, stages of columns, bytes of shared memory); no stages: it does not fit.

    Columns come from the second-level cache and need few stages; weights take the rest.
    """
    fixed = 1024 + _CONSUMERS * n * 2 + 8 * 2 * _ROWS + 32
    columns = n * _TILE_K * 2 + 2 * n * 4 * (1 + sums_of(t)) + 16  # and barriers
    weights, room = _ROWS * _stride(t) + 16, device.shared_per_block - fixed
    fits = [(min(_MAX_STAGES, (room - x * columns) // weights), x) for x in _X_STAGES]
    w_stages, x_stages = max(fits, key=lambda f: (min(f[0], 4), f[1]))
    if w_stages < 2:
        return 0, 0, 0
    return w_stages, x_stages, fixed + x_stages * columns + w_stages * weights


def takes(p: Product, device: DeviceInfo) -> bool:
    t = p.weights[0].dtype
    return (
        device.equal_bits
        and device.arch == "sm_90"
        and p.m > 1
        and all(w.dtype is t for w in p.weights)
        and known(t)
        and all(rows_ok(w, gcd(_chunk_bytes(t), 16), CHUNK) for w in p.weights)
        and columns_ok(p.x)
        and _stages(t, _columns(p.m), device)[0] > 0
    )


@dataclass(frozen=True)
class _Plan:
    """How the work is divided: `Shares` of integers_block.cuh.

    together: whether neighbouring blocks have columns in common, and all quarters of their tiles.
    parts: whether some tile's quarters are several blocks'.
    """

    tiles: int
    groups: int
    blocks: int
    together: bool
    parts: bool


def _plan(p: Product, device: DeviceInfo) -> _Plan:
    """Quarters of tiles for all multiprocessors, unless whole tiles are done as soon."""
    tiles, groups = p.tiles(_ROWS // 2), ceil_div(p.m, _columns(p.m))
    quarters, pairs = tiles * groups * _QUARTERS, ceil_div(tiles, _CLUSTER) * groups
    clusters = max(1, device.sm_count // _CLUSTER)
    rounds, together = ceil_div(quarters, device.sm_count), ceil_div(pairs, clusters)
    if groups > 1 and p.m > _COLUMNS[-1] and _QUARTERS * together <= rounds:
        return _Plan(tiles, groups, _CLUSTER * ceil_div(pairs, together), True, False)
    blocks = ceil_div(quarters, rounds)
    parts = any((i * quarters // blocks) % _QUARTERS for i in range(blocks))
    return _Plan(tiles, groups, blocks, False, parts)


@dataclass(frozen=True)
class _Places:
    """Addresses in scratch memory, from its start on."""

    x: int
    numbers: int
    scales: int
    turns: int
    parts: int
    end: int


def _places(p: Product, plan: _Plan, scratch: int = 0) -> _Places:
    n = _columns(p.m)
    columns, at = ceil_div(p.m, n) * n, [scratch]
    half = p.heads.head_dim // 2 if p.heads else 0
    numbers = 4 * _NUMBERS * columns * (p.k // 32)
    parts = plan.blocks * _QUARTERS * _ROWS * n * 4 if plan.parts else 0
    for nbytes in (2 * columns * p.k, numbers, 4 * p.m, 8 * p.m * half, parts):
        at.append(at[-1] + ceil_div(nbytes, 256) * 256)
    return _Places(*at)


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return _places(p, _plan(p, device)).end


def _columns_launch(p: Product, at: _Places) -> Launch:
    """The rows of x, times the norm's weights if there is a norm."""
    heads = p.heads
    numbers = struct.pack(
        "@7P", p.norm.address if p.norm else 0, at.x, at.numbers, at.scales if p.norm else 0,
        heads.pos.address if heads else 0, heads.factors.address if heads and heads.factors else 0,
        at.turns if heads else 0,
    ) + (heads.rope if heads else _NO_ROPE)  # fmt: skip
    numbers += struct.pack("@f2i", p.eps, _columns(p.m), heads.head_dim // 2 if heads else 0)
    chunks = p.k // CHUNK
    threads = 32 * ceil_div(chunks, ceil_div(chunks, 32))
    return Launch(
        Kernel("columns_integers.cu", "integer_columns"), (p.m, 1, 1), (threads, 1, 1),
        pack(p.x, numbers), dependent=True, leaves=p.value,
    )  # fmt: skip


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launches of a product that `takes` takes."""
    plan, n, t = _plan(p, device), _columns(p.m), p.weights[0].dtype
    at = _places(p, plan, scratch)
    w_stages, x_stages, shared = _stages(t, n, device)
    places = Layout(at.x, at.scales if p.norm else 0, at.turns, at.parts)
    body = arguments(p, places, plan.tiles, _QUARTERS, w_stages, x_stages, 0)
    body += struct.pack("@P2I2i", at.numbers, *_BYTE_MASKS, plan.groups, plan.blocks)
    body += bytes(-len(body) % 16)
    name = "mul_mat_integers_together" if plan.together else "mul_mat_integers"
    kernel = Kernel(_SOURCE, f"{name}<{cpp_type(t)}, {n}>", _OPTIONS)
    grid, block = (plan.blocks, 1, 1), (_THREADS, 1, 1)
    made = [_columns_launch(p, at), Launch(kernel, grid, block, body, shared, dependent=True)]
    if plan.parts:
        kernel, grid = Kernel(_SOURCE, f"sum_integers<{n}>", _OPTIONS), (n // 8, plan.blocks, 1)
        made.append(Launch(kernel, grid, (_CONSUMERS, 1, 1), body, dependent=True))
    return made
