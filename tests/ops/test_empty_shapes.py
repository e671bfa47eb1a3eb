"""Dimensions of length zero: an op refuses them or computes nothing, everywhere the same."""

from __future__ import annotations

import ctypes
from functools import cache
from math import prod

import pytest

from gguflow.engine.backends.cpu.abi import Dims, GfOp, GfTensor
from gguflow.engine.backends.cpu.backend import CpuBackend
from gguflow.engine.backends.cpu.native import runnable_isas
from gguflow.engine.graph import F32


@cache
def _backend(isa: str) -> CpuBackend:
    return CpuBackend(n_threads=2, isa=isa)


@pytest.mark.parametrize("isa", runnable_isas())
@pytest.mark.parametrize("heads", [(0, 0), (0, 2), (4, 0)])
def test_native_attention_without_heads_computes_nothing(isa: str, heads: tuple[int, int]) -> None:
    """Shape inference refuses such operands; a record made by hand must not kill the process."""
    backend = _backend(isa)

    def tensor(*ne: int) -> GfTensor:
        nb = [4 * prod(ne[:i]) for i in range(4)]
        return GfTensor(0, Dims(*ne), Dims(*nb), F32.ggml_id, 0)

    q, kv, pos = tensor(8, heads[0], 3, 1), tensor(8, heads[1], 5, 1), tensor(3, 1, 1, 1)
    op = GfOp(fn=backend.lib.address("gf_op_attention"), n_src=4, dst=q)
    op.src[0], op.src[1], op.src[2], op.src[3] = q, kv, kv, pos
    assert backend.lib.scratch_bytes("attention", op, 2) == 0
    backend.lib.cdll.gf_pool_run(backend.pool(), ctypes.byref(op), 1, None, 0, None)
