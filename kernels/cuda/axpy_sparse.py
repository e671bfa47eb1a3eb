"""Launches axpy_sparse.cu: the sum of listed rows, each times its activations."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gguflow.engine.graph import F32, Role, Tensor

from .dequantize import can_dequantize, dequantize_launch
from .gemm import WORKSPACE_BYTES, Gemm, Matrix
from .launch import Call, DeviceInfo, Kernel, Launch, Operand, ceil_div, cpp_type, register
from .mul_mat_rows import finish_launch, round_launch
from .mul_mat_sparse import neurons_of, supports
from .mul_mat_vec import columns_for
from .sparse import FEW, SPARSE_TOKENS, Neurons, Scratch, groups, marked, pick_launch

OPS = ("axpy_sparse",)
_THREADS, _SLOTS = 512, 1024  # as in axpy_sparse.cu
_WARPS = _THREADS // 32
_MOST_STAGES = 8
# Bytes of rows that a block has on their way at most, quantized or not.
RING = {True: 48 << 10, False: 64 << 10}
# Shared memory of a block that may start beside one of mul_mat_sparse: fewer rows are on their way
# where the list is long. With more than two columns a block takes all registers and starts alone.
BESIDE = 77 << 10
# More than a kernel gets without asking: the device then divides its memory as it does for
# mul_mat_sparse, and blocks of both can be on one multiprocessor.
_LEAST_SHARED = (48 << 10) + 16


@dataclass(frozen=True)
class Plan:
    """slices and parts: the grid; share: rows of a block at most."""

    entry: str
    slices: int
    parts: int
    share: int
    shared: int


def strip_pitch(w: Operand) -> int:
    """`PITCH` of axpy_sparse.cu: bytes of what a block reads of a row, and what stands before."""
    if not w.dtype.is_quantized:
        return 512
    nbytes = 256 // w.dtype.block * w.dtype.nbytes
    return (nbytes + 29) // 16 * 16 if nbytes % 16 else nbytes


def plan(w: Operand, columns: int, device: DeviceInfo) -> Plan:
    """How blocks divide the columns and the list for so many activations a row."""
    n_embd, n_rows = w.ne[:2]
    name = cpp_type(w.dtype)
    streamed = not (w.address % 16 or w.nb[1] % 16 or w.dtype.row_bytes(n_embd) % 16)
    pitch = strip_pitch(w) if streamed else 0
    width = 128 if streamed and w.dtype.name == "f32" else 256
    group = 4 if pitch < 200 else 2  # neighbouring rows of a warp
    turn, stage = group * _WARPS, group * _WARPS * pitch
    stages = min(_MOST_STAGES, RING[w.dtype.is_quantized] // stage) if streamed else 0
    sums = 4 * _WARPS * (width + 32)
    slices, entry = ceil_div(n_embd, width), 4 + 4 * columns
    parts = 1
    bits = ceil_div(4 * ceil_div(n_rows, 32), 16) * 16
    if slices <= _SLOTS:
        room = device.shared_per_block - 1024 - bits - max(sums, stages * stage)
        most = max(turn, room // entry // turn * turn)
        parts = max(1, min(device.sm_count // slices, ceil_div(n_rows, 64)), ceil_div(n_rows, most))
    share = ceil_div(ceil_div(n_rows, parts), turn) * turn
    listed = bits + share * entry
    while stages > 3 and columns <= 2 and listed + stages * stage > BESIDE:
        stages -= 1
    shared = max(listed + max(sums, stages * stage), _LEAST_SHARED)
    kernel = f"axpy_stream<{name}, {columns}, {group}, {stages}>"
    if not streamed:
        kernel = f"axpy_rows<{name}, {columns}>"
    return Plan(kernel, slices, parts, share, shared)


def parts_bytes(w: Operand, m: int, device: DeviceInfo) -> int:
    """Scratch memory for the sums of blocks that share a slice."""
    columns = columns_for(min(m, FEW))
    # The address decides between kernels, of which either may divide the rows into more parts.
    parts = max(plan(o, columns, device).parts for o in (w, w.shift(2)))
    return 4 * parts * columns * w.ne[0] if parts > 1 else 0


def axpy_launch(
    w: Operand,
    on: Neurons,
    h: Operand | int,
    dst: Operand,
    parts: int,
    device: DeviceInfo,
    r: Operand | None = None,
    early: bool = False,
) -> Launch:
    """dst [m, n_embd] = the active rows of w times h, plus r. h: [m, n_ff], or the address of
    activations by place in the list. parts: address of scratch memory. early: what tells the active
    rows was there before the launch ahead of this one began."""
    p = plan(w, columns_for(on.m), device)
    at, step = (h, 0) if isinstance(h, int) else (h.address, max(1, h.nb[1] // 4))
    args = on.pack() + struct.pack(
        "@PqPqPqPqP3i4x", w.address, w.nb[1], at, step, dst.address, dst.nb[1] // 4,
        r.address if r else 0, 0 if r is None or r.ne[1] == 1 else r.nb[1] // 4, parts, w.ne[0],
        p.share, early,
    )  # fmt: skip
    kernel = Kernel("axpy_sparse.cu", p.entry)
    return Launch(kernel, (p.slices, p.parts, 1), (_THREADS, 1, 1), args, p.shared, dependent=True)


# -- many tokens -----------------------------------------------------------------------------------


def product_type(w: Operand) -> str:
    """The type in which a library multiplies by w [k, n]; "" where it cannot."""
    if w.dtype.is_quantized:
        return "bf16" if can_dequantize(w) else ""
    size = w.dtype.nbytes
    return w.dtype.name if w.nb[0] == size and w.nb[1] % size == w.address % 16 == 0 else ""


def is_dense(w: Operand, m: int, decides: Operand) -> bool:
    """Whether m tokens are so many that dense products are used. decides: of whose type."""
    return m > SPARSE_TOKENS.get(decides.dtype.name, FEW) and bool(product_type(w))


@dataclass(frozen=True)
class Dense:
    """h w for h [m, n_rows] with zeros where rows are not wanted.

    Scratch memory: [h by the row][rounded h][a scale a row][workspace][16-bit weights]
    """

    w: Operand
    m: int
    address: int = 0

    def _offsets(self) -> list[int]:
        m, (n_embd, n_rows) = self.m, self.w.ne[:2]
        rounded = 0 if product_type(self.w) == "f32" else 2 * m * n_rows
        widened = 2 * n_embd * n_rows if self.w.dtype.is_quantized else 0
        at = [0]
        for nbytes in (4 * m * n_rows, rounded, 4 * m, WORKSPACE_BYTES, widened):
            at.append(at[-1] + ceil_div(nbytes, 256) * 256)
        return at

    @property
    def nbytes(self) -> int:
        return self._offsets()[-1]

    def launches(self, dst: Operand, h: Operand | None = None) -> list[Launch | Gemm]:
        """h: [m, n_rows], or None where it lies at the start of the scratch memory."""
        w, kind = self.w, product_type(self.w)
        n_embd, n_rows = w.ne[:2]
        at, rounded, scales, workspace, widened, _ = (self.address + i for i in self._offsets())
        if h is None:
            h = Operand.of(Tensor("h", F32, (self.m, n_rows), Role.NODE), at)
        size = 4 if kind == "f32" else 2
        rows, weights = Matrix(h.address, h.nb[1] // 4), Matrix(w.address, w.nb[1] // size)
        made: list[Launch | Gemm] = []
        if kind != "f32":
            made.append(round_launch(kind, h, rounded, scales, None))
            rows = Matrix(rounded, n_rows)
        if w.dtype.is_quantized:
            made.append(dequantize_launch(w, widened, kind))
            weights = Matrix(widened, n_embd)
        to = Matrix(dst.address, n_embd)
        made.append(
            Gemm(kind, "f32", n_embd, self.m, n_rows, weights, rows, to, workspace, w_rows="k")
        )
        if kind == "f16":
            made.append(finish_launch(dst, None, scales, False))
        return made


# -- axpy_sparse -----------------------------------------------------------------------------------


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    w, m = Operand.of(node.live_srcs()[0], 0), node.shape[0]
    if is_dense(w, m, w):
        return Dense(w, m).nbytes
    return Scratch(0, w.ne[1], m).end + parts_bytes(w, m, device)


def launches(call: Call) -> list[Launch | Gemm]:
    w, h, dst = call.src(0), call.src(1), call.dst
    m = h.ne[1]
    on, at = neurons_of(call, 2, w.ne[1], m), Scratch(call.scratch, w.ne[1], m)
    if is_dense(w, m, w):
        many = Dense(w, m, call.scratch)
        if on.idx is on.bucket is on.gpu_idx is None and h.is_dense and h.address % 16 == 0:
            return many.launches(dst, h)
        return [pick_launch(on, h, call.scratch), *many.launches(dst)]
    made: list[Launch | Gemm] = []
    for t, few in groups(m):
        first, wanted = marked(on.tokens(t, few), at.marks)
        some, to = h.shift(t * h.nb[1]), dst.shift(t * dst.nb[1])
        made += [*first, axpy_launch(w, wanted, some, to, at.end, call.device)]
    return made


register(OPS, launches, supports=supports, scratch_bytes=scratch_bytes)
