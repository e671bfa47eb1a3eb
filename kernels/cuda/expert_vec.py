"""Launches expert_vec.cu: products of few tokens with quantized experts, on Hopper."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .glu import FUNCTOR
from .launch import Call, DeviceInfo, Kernel, Launch, Operand, ceil_div, cpp_type, fast_div, pack

FEW = 64  # pairs of tokens and experts up to which weights are read once a pair
MOST_USED = 32  # kMostUsed: experts of a token
_SOURCE = "expert_vec.cu"
_WARPS = 22  # kMostThreads
_STAGES = 4  # asked for at once
_CHUNK, _CHUNK_BYTES = 2048, 2560  # elements of a chunk of activations, and its bytes as int8
_UNIT = 64  # elements of a row that a lane takes
_SLACK = 16  # bytes behind a row that may be looked at
_STATIC = 1024  # shared memory that kernels declare themselves, at most


@dataclass(frozen=True)
class _Division:
    """How blocks share the work on one token's or pair's results.

    items: rows, or pairs of rows. stage: bytes of a warp's weights of an item. beside: of shared
    memory that a block needs otherwise. team: warps that share an item.
    """

    k: int
    items: int
    groups: int  # of items: blockIdx.y
    stage: int
    beside: int
    device: DeviceInfo
    team: int = 1

    @property
    def rows(self) -> int:
        """Items of a block: as many as leave one block a multiprocessor."""
        return ceil_div(self.items, max(1, self.device.sm_count // self.groups))

    @property
    def _room(self) -> int:
        """Bytes of shared memory for warps' stages, and their barriers."""
        return self.device.shared_per_block - self.beside - _STATIC

    @property
    def warps(self) -> int:
        room = self._room // (self.team * (self.stage + 16))
        teams = min(_WARPS // self.team, self.rows, room)
        if teams <= 0:
            return 0
        return self.team * ceil_div(self.rows, ceil_div(self.rows, teams))  # as many turns for all

    @property
    def stages(self) -> int:
        turns = ceil_div(self.rows, self.warps // self.team)
        return min(_STAGES, turns, self._room // self.warps // (self.stage + 8))

    @property
    def grid(self) -> tuple[int, int, int]:
        return ceil_div(self.items, self.rows), self.groups, 1

    @property
    def block(self) -> tuple[int, int, int]:
        return 32 * self.warps, 1, 1

    @property
    def shared(self) -> int:
        barriers = ceil_div(8 * self.warps * self.stages, 16) * 16
        return barriers + self.beside + self.warps * self.stages * self.stage

    def pack(self, row_bytes: int) -> bytes:
        """`Division` of expert_vec.cu."""
        return (
            fast_div(self.k // 4)
            + fast_div(self.k // _UNIT)
            + struct.pack("@4i", self.rows, self.stages, row_bytes, self.stage)
        )


def _row_bytes(w: Operand) -> int:
    """Bytes of a row that are copied: whole 16."""
    return ceil_div(w.dtype.row_bytes(w.ne[0]), 16) * 16


def rows_of_16(w: Operand, x: Operand) -> bool:
    """Whether rows of weights are of whole units, and begin, as x's rows, at multiples of 16
    bytes."""
    unit = max(_UNIT, w.dtype.block)
    return (
        w.ne[0] % unit == 0
        and w.nb[0] == w.dtype.nbytes
        and not any(b % 16 for b in (w.address, *w.nb[1:3], x.address, *x.nb[1:3]))
        and w.nb[1] >= _row_bytes(w)
        and x.nb[0] == 4
    )


def _x_bytes(k: int) -> int:
    return ceil_div(k, _CHUNK) * _CHUNK_BYTES


def _of_glu(gate: Operand, n_pairs: int, device: DeviceInfo) -> _Division:
    k, n = gate.ne[:2]
    return _Division(k, n, n_pairs, 2 * _row_bytes(gate) + _SLACK, _x_bytes(k), device)


def _of_sum(w: Operand, ids: Operand, device: DeviceInfo) -> _Division:
    (k, n), (used, m) = w.ne[:2], ids.ne[:2]
    stage = 2 * ceil_div(used, 2) * _row_bytes(w) + _SLACK
    beside = 8 * MOST_USED + used * _x_bytes(k)
    return _Division(k, ceil_div(n, 2), m, stage, beside, device, team=2)


def takes_glu(gate: Operand, up: Operand, x: Operand, n_pairs: int, device: DeviceInfo) -> bool:
    """Whether `glu_launch` is for these."""
    return (
        n_pairs <= FEW
        and device.is_hopper
        and gate.dtype.is_quantized
        and rows_of_16(gate, x)
        and rows_of_16(up, x)
        and _of_glu(gate, n_pairs, device).warps > 0
    )


def takes_sum(w: Operand, x: Operand, ids: Operand, device: DeviceInfo) -> bool:
    """Whether `sum_launch` is for these."""
    used, m = ids.ne[:2]
    return (
        used <= MOST_USED
        and used * m <= FEW
        and device.is_hopper
        and w.dtype.is_quantized
        and rows_of_16(w, x)
        and w.nb[1] == _row_bytes(w)  # two rows are copied as one
        and _of_sum(w, ids, device).warps > 0
    )


def glu_launch(call: Call, arguments: bytes) -> Launch:
    """mul_mat_id_glu. arguments: `IdGluArgs` of mul_mat_id.cuh."""
    gate, dst = call.src(0), call.dst
    d = _of_glu(gate, dst.ne[1] * dst.ne[2], call.device)
    entry = f"expert_glu<{cpp_type(gate.dtype)}, {FUNCTOR[call.node.params['act']]}>"
    args = pack(arguments, d.pack(_row_bytes(gate)))
    return Launch(Kernel(_SOURCE, entry), d.grid, d.block, args, d.shared, dependent=True)


def sum_launch(call: Call) -> Launch:
    """mul_mat_id_sum."""
    w, ids = call.src(0), call.src(2)
    d = _of_sum(w, ids, call.device)
    tensors = [call.dst, *(call.src(i) for i in range(4)), call.optional(4), call.optional(5)]
    args = pack(*tensors, d.pack(_row_bytes(w)))
    entry = f"expert_sum<{cpp_type(w.dtype)}>"
    return Launch(Kernel(_SOURCE, entry), d.grid, d.block, args, d.shared, dependent=True)
