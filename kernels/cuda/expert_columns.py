"""Launches expert_rows.cu and expert_columns.cu: many pairs (row, id) times quantized and 16-bit
experts, on Hopper."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gguflow.engine.graph import DType, Tensor

from .expert_vec import FEW, rows_of_16
from .glu import FUNCTOR
from .launch import DeviceInfo, Kernel, Launch, Operand, ceil_div, cpp_type, pack

# Its products exist for this target alone, which the devices of `sm_90` run.
_OPTIONS = ("-arch=sm_90a",)
_SOURCE, _ROWS_SOURCE = "expert_columns.cu", "expert_rows.cu"
MOST_EXPERTS = 1023  # of kSorters threads one has what is no expert
_MOST_COLUMNS, _MOST_PADDED = 64, 31  # of a tile; columns that its last one has too many
_THREADS, _ROWS = 384, 128  # of a block
_ROW_THREADS, _MOST_EIGHTS = 256, 4  # of expert_rows, and eights of elements that a thread has
_COLUMN_STAGE = 128 * _MOST_COLUMNS
_PER_BLOCK = 233472 // 2 - 1024  # bytes of shared memory where two blocks share a multiprocessor
_MOST_STAGES = 12
_NIBBLES = ("q4_0", "mxfp4")  # lanes hold elements 4 t and following of both halves of 32
_FLOATS = ("f16", "bf16")
_MASKS = 0x000F000F, 0x00F000F0


def _chunk(t: DType) -> int:
    """Elements of a row that a stage of weights has."""
    return 256 if t.is_quantized else 128


def _stages(t: DType) -> tuple[int, int, int]:
    """(stages of weights, stages of columns, bytes of shared memory)."""
    nbytes = _chunk(t) // t.block * t.nbytes
    pieces = nbytes // 16 if nbytes % 16 == 0 else ceil_div(nbytes + 15, 16)
    stride = 16 * (pieces | 1 if t.is_quantized else pieces)
    weights, columns = _ROWS * stride + 16, _COLUMN_STAGE + 16  # with their barriers
    beside = 1024 + 8 * _ROWS
    fits = [(min(_MOST_STAGES, (_PER_BLOCK - beside - x * columns) // weights), x)
            for x in (3, 4, 6)]  # fmt: skip
    w, x = max(fits, key=lambda f: (min(f[0], 4), f[1]))
    return w, x, beside + x * columns + w * weights


def takes(w: Operand, x: Operand, n_pairs: int, device: DeviceInfo) -> bool:
    """Whether `Experts` of these are for this device. Known from shapes and strides alone."""
    return (
        device.arch == "sm_90"
        and n_pairs > FEW
        and n_pairs < 1 << 24
        and w.ne[2] <= MOST_EXPERTS
        and w.ne[0] <= 8 * _ROW_THREADS * _MOST_EIGHTS
        and (w.dtype.is_quantized or w.dtype.name in _FLOATS)
        and rows_of_16(w, x)
        and _stages(w.dtype)[0] >= 2
    )


@dataclass(frozen=True)
class Experts:
    """x's rows times the experts that `ids` name: gate and up, or one matrix of each.

    Scratch memory: [pairs][slots][tiles][how many][columns][a scale a column]. The first four
    depend on the ids alone, so that two ops in a row share them.
    """

    weights: Sequence[Operand]
    x: Operand
    ids: Operand
    scratch: int = 0

    @property
    def n_pairs(self) -> int:
        return self.ids.size

    @property
    def _tiles(self) -> int:
        """The most that there may be."""
        n_experts = self.weights[0].ne[2]
        return min(n_experts + 1, self.n_pairs) + self.n_pairs // _MOST_COLUMNS

    def _places(self) -> list[int]:
        k, _, n_experts = self.weights[0].ne[:3]
        columns = self.n_pairs + _MOST_PADDED * min(n_experts, self.n_pairs)
        at = [self.scratch]
        for nbytes in (4 * self.n_pairs, 16 * self.n_pairs, 16 * self._tiles, 4, 2 * k * columns,
                       4 * columns):  # fmt: skip
            at.append(at[-1] + ceil_div(nbytes, 256) * 256)
        return at

    @property
    def end(self) -> int:
        return self._places()[-1]

    def launches(
        self,
        dst: Operand,
        biases: Sequence[Operand | None],
        value: Tensor | None,
        device: DeviceInfo,
        act: str = "",
        params: Mapping[str, Any] | None = None,
    ) -> list[Launch]:
        """dst [m, u, n] = the products, or `act` over gate's and up's. value: what ids holds."""
        pairs, slots, tiles, count, columns, scales, _ = self._places()
        w, (k, n, n_experts) = self.weights[0], self.weights[0].ne[:3]
        sort = pack(self.ids, struct.pack("@4Pi", pairs, slots, tiles, count, n_experts))
        used, m = self.ids.ne[:2]
        own = self.x.ne[1:3] == (used, m)
        order = (4, 16) if w.dtype.name in _NIBBLES else (8, 4)
        rows = pack(self.x, struct.pack("@3P4i", slots, columns, scales, used, own, *order))
        eights = ceil_div(k, 8 * _ROW_THREADS)
        eights = 1 if eights == 1 else 2 if eights == 2 else _MOST_EIGHTS
        halves, split = "bf16" if w.dtype.name == "bf16" else "f16", "false"
        if w.dtype.is_quantized:
            split = "true"
        gated = len(self.weights) == 2
        types = cpp_type(w.dtype), FUNCTOR[act] if gated else "plain", "false"
        if k % _chunk(w.dtype) == 0:
            types = (*types[:2], "true")
        blocks = ceil_div(n, _ROWS // len(self.weights))
        w_stages, x_stages, shared = _stages(w.dtype)
        many = self._arguments(dst, biases, blocks, (w_stages, x_stages), params or {})
        kernel = Kernel(_SOURCE, f"expert_columns<{', '.join(types)}>", _OPTIONS)
        grid = min(2 * device.sm_count, self._tiles * blocks)
        return [
            Launch(Kernel(_ROWS_SOURCE, "expert_sort"), (1, 1, 1), (1024, 1, 1), sort,
                   dependent=True, leaves=value),
            Launch(Kernel(_ROWS_SOURCE, f"expert_rows<{halves}, {split}, {eights}>"),
                   (self.n_pairs if own else m, 1, 1), (_ROW_THREADS, 1, 1), rows, dependent=True),
            Launch(kernel, (grid, 1, 1), (_THREADS, 1, 1), many, shared, dependent=True),
        ]  # fmt: skip

    def _arguments(self, dst: Operand, biases: Sequence[Operand | None], blocks: int,
                   stages: tuple[int, int], params: Mapping[str, Any]) -> bytes:  # fmt: skip
        """`ExpertColumnsArgs` of expert_columns.cu."""
        pairs, _, tiles, count, columns, scales, _ = self._places()
        both = [self.weights[0], self.weights[-1]]
        added = [biases[0], biases[-1]]
        body = struct.pack(
            "@10P6q5i2f2I",
            *(w.address for w in both),
            *(0 if b is None else b.address for b in added),
            columns, scales, pairs, tiles, count, dst.address,
            *(w.nb[1] for w in both), *(w.nb[2] for w in both),
            *(0 if b is None else b.nb[1] // 4 for b in added),
            *self.weights[0].ne[:2], blocks, *stages,
            params.get("alpha", 0.0), params.get("limit", 0.0), *_MASKS,
        )  # fmt: skip
        return body + bytes(-len(body) % 16)
