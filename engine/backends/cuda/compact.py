"""The compact form of weights beside themselves, on a GPU (kernels/cuda/compact.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gguflow.engine.backends.base import Buffer
from gguflow.engine.graph import Tensor
from gguflow.kernels.cuda.compact import compact_bytes, compact_launch
from gguflow.kernels.cuda.launch import Operand

from .memory import ALLOC_UNIT, CudaBuffer

if TYPE_CHECKING:
    from .backend import CudaBackend

_WORD = 4  # bytes of what is told of a weight


class CudaCompactor:
    """What `Compactor` asks."""

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend

    def bytes_of(self, weight: Tensor, users: Sequence[Tensor]) -> int:
        n = compact_bytes(weight, users, self._backend.device.info)
        return -(-n // ALLOC_UNIT) * ALLOC_UNIT

    def has(self, buffer: Buffer) -> bool:
        return isinstance(buffer, CudaBuffer) and buffer.compact is not None

    def make(self, weights: Sequence[tuple[Tensor, Buffer, int]]) -> int:
        backend, made = self._backend, list[tuple[CudaBuffer, CudaBuffer]]()
        backend.memory.reserve(sum(n for *_, n in weights), 0)
        told = CudaBuffer(backend.device, _WORD * len(weights))
        launches = []
        for i, (t, buffer, n) in enumerate(weights):
            assert isinstance(buffer, CudaBuffer)
            to = CudaBuffer(backend.device, n, zero=False)
            w, flag = Operand.of(t, buffer.address), told.address + _WORD * i
            launches.append(compact_launch(w, to.address, flag, backend.device.info))
            made.append((buffer, to))
        backend.modules.prepare(x.kernel for x in launches)
        for x in launches:
            backend.modules.bind(x).issue()
        too_large = told.read(0, told.nbytes).view(np.int32)  # when all are there
        kept = [pair for pair, is_it in zip(made, too_large, strict=True) if not is_it]
        for buffer, to in kept:
            buffer.compact = to
        return sum(to.nbytes for _, to in kept)
