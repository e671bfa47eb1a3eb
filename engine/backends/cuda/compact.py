"""The compact form of weights beside themselves, on a GPU (kernels/cuda/compact.py)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gguflow.engine.backends.base import Buffer
from gguflow.engine.compile import round_up
from gguflow.engine.graph import DType, Tensor
from gguflow.kernels.cuda.compact import (
    Layout,
    compact_bytes,
    compact_launch,
    kind_of_use,
    layout_of,
)
from gguflow.kernels.cuda.launch import CompactForm, Operand

from .memory import ALLOC_UNIT, CompactBuffer, CudaBuffer

if TYPE_CHECKING:
    from .backend import CudaBackend

_WORD = 4  # bytes of what is told of a weight


class CudaCompactor:
    """What `Compactor` asks."""

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend
        self._layouts: dict[Hashable, Layout | None] = {}  # by `kind_of_use`

    def _layout(self, weight: Tensor, users: Sequence[Tensor]) -> Layout | None:
        kind = kind_of_use(weight, users)
        if kind not in self._layouts:
            self._layouts[kind] = layout_of(weight, users, self._backend.device.info)
        return self._layouts[kind]

    def several_rows(self, t: DType) -> bool:
        return t.is_quantized and self._backend.device.info.has_fragments

    def bytes_of(self, weight: Tensor, users: Sequence[Tensor]) -> int:
        if self._layout(weight, users) is None:
            return 0
        return round_up(compact_bytes(weight), ALLOC_UNIT)

    def make(self, weights: Sequence[tuple[Tensor, Sequence[Tensor], Buffer]]) -> int:
        backend, made = self._backend, list[tuple[CudaBuffer, CompactBuffer]]()
        sizes = [self.bytes_of(t, users) for t, users, _ in weights]
        backend.memory.reserve(sum(sizes), 0)
        told = CudaBuffer(backend.device, _WORD * len(weights))
        launches = []
        for i, ((t, users, buffer), n) in enumerate(zip(weights, sizes, strict=True)):
            assert isinstance(buffer, CudaBuffer)
            layout = self._layout(t, users)
            assert layout is not None
            to = CompactBuffer(backend.device, n, layout.name)
            w, flag = Operand.of(t, buffer.address), told.address + _WORD * i
            launches.append(compact_launch(w, CompactForm(to.address, layout.name), flag))
            made.append((buffer, to))
        backend.modules.prepare(x.kernel for x in launches)
        for x in launches:
            backend.modules.bind(x).issue()
        too_large = told.read(0, told.nbytes).view(np.int32)  # when all are there
        kept = [pair for pair, is_it in zip(made, too_large, strict=True) if not is_it]
        for buffer, to in kept:
            buffer.compact = to
        return sum(to.nbytes for _, to in kept)
