"""The CPU kernels' interface: what a record carries, and what its mirrors must agree in."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

import gguflow.engine.ops
import gguflow.engine.quants  # noqa: F401  (both register what they define)
from gguflow.engine.backends.cpu import CpuBackend, CpuLibraryError, native
from gguflow.engine.backends.cpu.abi import MAX_SRC, AbiError, GfOp, GfTensor
from gguflow.engine.graph import F32, I32, Graph, Tensor, dtype_by_name
from gguflow.kernels.cuda import launch


@pytest.fixture(scope="module")
def cpu() -> CpuBackend:
    return CpuBackend(1)


def test_sizes_are_those_of_the_library(cpu: CpuBackend) -> None:
    sizes = cpu.lib.cdll.gf_abi_bytes
    assert sizes(b"gf_tensor") == ctypes.sizeof(GfTensor) == 80
    assert sizes(b"gf_op") == ctypes.sizeof(GfOp)
    assert sizes(b"else") == 0
    assert launch._TENSOR.size == launch.TENSOR_BYTES


def test_a_library_of_other_sizes_is_refused(
    cpu: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wider(ctypes.Structure):
        _fields_ = [("tensor", GfTensor), ("more", ctypes.c_int64)]

    monkeypatch.setattr(native, "GfTensor", Wider)
    path = native._library_path(cpu.lib.isa)
    with pytest.raises(CpuLibraryError, match="a gf_tensor has 80 bytes, expected 88; rebuild"):
        native.CpuLibrary(cpu.lib.isa, path)


def test_more_operands_than_a_record_has_are_refused(cpu: CpuBackend) -> None:
    g = Graph()
    x = g.input("x", F32, (2, 4))
    node = g.neg(x, name="wide")
    node.srcs = (x,) * (MAX_SRC + 1)
    assert not cpu.supports(node)
    with pytest.raises(AbiError, match="wide: neg has 9 operands, GF_MAX_SRC of .* is 8"):
        cpu.record(node, None)


def uses(make: Any, dtype: str = "q4_0") -> tuple[Tensor, list[Tensor]]:
    g = Graph()
    w = g.weight("w", dtype_by_name(dtype), (64, 64))
    made = make(g, w, g.input("x", F32, (3, 64)), g.input("ids", I32, (2,)))
    return w, made if isinstance(made, list) else [made]


@pytest.mark.parametrize(
    "packs, make",
    [
        (True, lambda g, w, x, ids: g.mul_mat(w, x)),
        (True, lambda g, w, x, ids: [g.mul_mat(w, x), g.get_rows(w, ids)]),
        (True, lambda g, w, x, ids: g.op("mul_mat_swiglu", w, w, x)),
        (False, lambda g, w, x, ids: g.get_rows(w, ids)),  # looked up alone: nothing is gained
        (False, lambda g, w, x, ids: [g.mul_mat(w, x), g.op("mul_mat_sparse", w, x)]),
        (False, lambda g, w, x, ids: [g.mul_mat(w, x), g.mul_mat(g.slice(w, 0, 0, 32), x)]),
    ],
)
def test_weights_are_packed_where_every_kernel_reads_that(
    cpu: CpuBackend, packs: bool, make: Any
) -> None:
    assert (cpu.packed_bytes(*uses(make)) > 0) is packs


def test_operands_that_kernels_read_packed_are_weights_or_tables(cpu: CpuBackend) -> None:
    assert cpu.lib.reads_packed("mul_mat_swiglu", 1) and not cpu.lib.reads_packed("mul_mat", 1)
    assert not cpu.lib.reads_packed("silu", 0) and not cpu.lib.reads_packed("sparse_ffn", 0)
