"""Launches mul_mat_columns.cu: quantized and 16-bit weights times 2 columns and more, on Hopper."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gguflow.engine.graph import DType, Role, Tensor

from .elementwise import cpp_bool
from .launch import Call, DeviceInfo, Kernel, Launch, Operand, ceil_div, cpp_type, pack
from .mul_mat_rows import repeated

_SOURCE = "mul_mat_columns.cu"
# Its products exist for this target alone, which the devices of `sm_90` run.
_OPTIONS = ("-arch=sm_90a",)
_THREADS, _TILE_K = 384, 64  # as in mul_mat_columns.cu
_COLUMNS = (8, 16, 32, 64, 128)  # a block may have
_PER_SM = 233472  # bytes of shared memory, of which a block takes one kilobyte beside its own
_MAX_STAGES = 12
_NIBBLES = ("q4_0",)  # whose lanes hold elements 4 t and following of both halves of 32


@dataclass(frozen=True)
class Tile:
    """What a block does: so many columns, and twice `depth` times 64 weight rows."""

    columns: int
    depth: int

    @property
    def rows(self) -> int:
        return 128 * self.depth

    @property
    def blocks(self) -> int:
        """Of a multiprocessor."""
        return 2 if self.depth == 1 and self.columns <= 64 else 1


def tile_for(m: int) -> Tile:
    columns = next((c for c in _COLUMNS if c >= m), _COLUMNS[-1])
    return Tile(columns, 2 if columns > 64 else 1)


def _chunk(t: DType) -> int:
    """Elements of a row that a stage holds."""
    return 256 if t.is_quantized else 128


def _stride(t: DType) -> int:
    """Bytes from row to row of a stage: `STRIDE` of columns_weights.cuh."""
    nbytes = _chunk(t) // t.block * t.nbytes
    if not t.is_quantized:
        return nbytes
    pieces = nbytes // 16 if nbytes % 16 == 0 else ceil_div(nbytes + 15, 16)
    return (pieces | 1) * 16


def _stages(t: DType, tile: Tile, device: DeviceInfo) -> tuple[int, int, int]:
    """(stages of weights, stages of columns, bytes of shared memory); no stages: it does not fit.

    Columns come from the second-level cache and need few stages; weights take the rest.
    """
    room = min(_PER_SM // tile.blocks, device.shared_per_block + 1024) - 2048
    columns, weights = tile.columns * _TILE_K * 2 + 16, tile.rows * _stride(t) + 16  # and barriers
    fits = [(min(_MAX_STAGES, (room - x * columns) // weights), x) for x in (3, 4, 6, 8)]
    w_stages, x_stages = max(fits, key=lambda f: (min(f[0], 4), f[1]))
    if w_stages < 2:
        return 0, 0, 0
    nbytes = x_stages * columns + w_stages * weights
    # The sums of up pass through it at the end.
    return w_stages, x_stages, 1024 + max(nbytes, 256 * tile.depth * tile.columns)


def _splits(weights: list[Operand], device: DeviceInfo) -> int:
    """Parts of k. They depend on the weights alone, so that bits do not depend on the columns."""
    k, n = weights[0].ne[:2]
    blocks = ceil_div(n * len(weights), 256)
    return max(1, min(k // 256, 16, device.sm_count // blocks))


def _operands(node: Tensor, srcs: tuple[Operand | None, ...]) -> list[Operand]:
    """The weights, then x."""
    n = 3 if node.op == "mul_mat_swiglu" else 2
    return [s for s in srcs[:n] if s is not None]


def _row_step(r: Operand) -> int | None:
    """Bytes between rows that are equally far from each other, or None."""
    step, n = r.nb[1] if r.ne[1] > 1 else 0, r.ne[1]
    for length, stride in zip(r.ne[2:], r.nb[2:], strict=True):
        if length == 1:
            continue
        if n > 1 and stride != n * step:
            return None
        step, n = (stride if n == 1 else step), n * length
    return step


def _takes(w: Operand, x: Operand, tile: Tile, device: DeviceInfo) -> bool:
    t = w.dtype
    aligned = 16 if not t.is_quantized or _chunk(t) // t.block * t.nbytes % 16 == 0 else 2
    return (
        (t.is_quantized or t.name in ("f16", "bf16"))
        and w.ne[2] == w.ne[3] == 1
        and w.ne[0] % _chunk(t) == 0
        and w.ne[0] < 1 << 24
        and w.ne[1] < 1 << 30
        and w.nb[0] == t.nbytes
        and w.address % aligned == w.nb[1] % aligned == 0
        and x.nb[0] == 4
        and not any(b % 16 for b in (x.address, *x.nb[1:]))
        and x.rows < 1 << 20
        and _stages(t, tile, device)[0] > 0
    )


def applies(node: Tensor, srcs: tuple[Operand | None, ...], device: DeviceInfo) -> bool:
    """Whether `launches` takes this node with these operands (addresses may be zero)."""
    *weights, x = _operands(node, srcs)
    r = srcs[2] if len(weights) == 1 and len(srcs) > 2 else None
    return (
        device.arch == "sm_90"
        and x.rows > 1
        and len({(w.dtype, w.nb[1]) for w in weights}) == 1
        and all(_takes(w, x, tile_for(x.rows), device) for w in weights)
        and (r is None or _row_step(repeated(r, node.ne_nb()[0])) is not None)
    )


def _layout(weights: list[Operand], x: Operand, tile: Tile, device: DeviceInfo) -> list[int]:
    """Offsets in scratch memory: [rounded x][a scale a row][sums of parts of k][end]."""
    groups, splits = ceil_div(x.rows, tile.columns), _splits(weights, device)
    blocks = ceil_div(weights[0].ne[1] * len(weights), tile.rows)
    if len(weights) == 2:
        blocks = ceil_div(weights[0].ne[1], tile.rows // 2)
    sums = 4 * splits * groups * blocks * tile.rows * tile.columns if splits > 1 else 0
    at = [0]
    for nbytes in (2 * groups * tile.columns * x.ne[0], 4 * x.rows, sums):
        at.append(at[-1] + ceil_div(nbytes, 256) * 256)
    return at


def scratch_bytes(node: Tensor, device: DeviceInfo, tile: Tile | None = None) -> int:
    srcs = tuple(None if s is None else Operand.of(s, 0) for s in node.srcs)
    if not applies(node, srcs, device):
        return 0
    *weights, x = _operands(node, srcs)
    return _layout(weights, x, tile or tile_for(x.rows), device)[-1]


def _round_launch(
    t: DType, x: Operand, to: int, scales: int, columns: int, value: Tensor | None
) -> Launch:
    """The rows of x as f16 with a scale each, or as bf16, in the order of fragments of type t."""
    if value is not None and value.owner.role is Role.STATE:
        value = None  # it may change between two ops that read it
    rounded = "bf16" if t.name == "bf16" else "f16"
    order = (4, 16, 1) if t.name in _NIBBLES else (8, 4, int(t.is_quantized))
    args = pack(x, struct.pack("@2P4i", to, scales if rounded == "f16" else 0, columns, *order))
    entry = f"round_columns<{rounded}, {cpp_bool(rounded == 'f16')}>"
    kernel = Kernel(_SOURCE, entry, _OPTIONS)
    return Launch(kernel, (x.rows, 1, 1), (512, 1, 1), args, dependent=True, leaves=value)


def launches(call: Call, tile: Tile | None = None) -> list[Launch]:
    """The launches of a node that `applies`."""
    device = call.device
    *weights, x = _operands(call.node, call.srcs)
    tile = tile or tile_for(x.rows)
    layout = _layout(weights, x, tile, device)
    rounded, scales, parts, _ = (call.scratch + at for at in layout)
    w, t = weights[0], weights[0].dtype
    n, m, k = w.ne[1], x.rows, x.ne[0]
    gated = len(weights) == 2
    splits, groups = _splits(weights, device), ceil_div(m, tile.columns)
    w_stages, x_stages, shared = _stages(t, tile, device)
    value = call.node.srcs[len(weights)]
    made = [_round_launch(t, x, rounded, scales, tile.columns, value)]
    r = None if gated else call.optional(2)
    if r is not None:
        r = repeated(r, call.dst.ne)
    rows = tile.rows // 2 if gated else tile.rows
    fragments = tile.depth * tile.columns // 8
    args = struct.pack(
        "@7P3q8i", w.address, weights[-1].address if gated else 0, rounded,
        0 if t.name == "bf16" else scales, 0 if r is None else r.address, call.dst.address, parts,
        w.nb[1], 0 if r is None else _row_step(r) or 0, 0 if r is None else r.nb[0],
        n, m, k, splits, w_stages, x_stages, rows, fragments,
    )  # fmt: skip
    args += bytes(-len(args) % 16)
    blocks = ceil_div(n, rows)
    entry = f"mul_mat_columns<{cpp_type(t)}, {tile.columns}, {tile.depth}>"
    kernel = Kernel(_SOURCE, entry, _OPTIONS)
    grid = (blocks, splits, groups)
    made.append(Launch(kernel, grid, (_THREADS, 1, 1), args, shared, dependent=True))
    if splits > 1:
        kernel = Kernel(_SOURCE, f"sum_columns<{tile.columns}>", _OPTIONS)
        grid = (fragments * (1 if gated else 2), blocks, groups)
        made.append(Launch(kernel, grid, (128, 1, 1), args, dependent=True))
    return made
