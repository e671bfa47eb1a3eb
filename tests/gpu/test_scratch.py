"""Every op stays within the scratch memory that it asks for, by the addresses in its launches."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from harness import declare_case
from kernel_list import DEVICE, EQUAL, MANY

from gguflow.engine.graph import F32, Graph, Role, Tensor, all_ops, dtype_by_name
from gguflow.kernels.cuda import mul_mat_fragments_few as few
from gguflow.kernels.cuda import mul_mat_fragments_many as many
from gguflow.kernels.cuda.columns import products
from gguflow.kernels.cuda.compact import FRAGMENTS, Layout
from gguflow.kernels.cuda.gemm import WORKSPACE_BYTES, Gemm, Matrix
from gguflow.kernels.cuda.launch import (
    Call,
    CompactForm,
    DeviceInfo,
    Launch,
    Operand,
    launches,
    scratch_bytes,
    supports,
)

# Far from everything, and with upper halves that no length or pair of integers has.
SCRATCH = 0x75A5A << 32
OPERANDS = 0x3C3C3 << 32


def launched(
    node: Tensor, device: DeviceInfo, layout: Layout | None = None
) -> tuple[list[Launch | Gemm], list[tuple[int, int]]]:
    """The launches, and the operands' memory: (begin, end). layout: in which weights lie too."""
    places, srcs = [], []
    for i, t in enumerate((node, *node.srcs)):
        if t is None:
            srcs.append(None)
            continue
        begin = OPERANDS + (i << 40)
        places.append((begin, begin + t.owner.nbytes))
        o = Operand.of(t, begin + t.view_offset)
        if layout and t.role is Role.WEIGHT:
            o = replace(o, compact=CompactForm(begin, layout.name))
        srcs.append(o)
    dst, *rest = srcs
    assert dst is not None
    return list(launches(Call(node, dst, tuple(rest), device, SCRATCH))), places


def ends(g: Gemm) -> Iterator[tuple[int, int]]:
    """(address, end) of the memory that a product uses."""
    size, out = (4 if t == "f32" else 2 for t in (g.dtype, g.out))

    def of(m: Matrix, rows: int, n: int, size: int) -> tuple[int, int]:
        last = (g.batch - 1) * m.batch_stride + (rows - 1) * m.ld + n
        return m.address, m.address + last * size

    yield of(g.w, *((g.n, g.k) if g.w_rows == "n" else (g.k, g.n)), size)
    yield of(g.x, g.m, g.k, size)
    yield of(g.d, g.m, g.n, out)
    if g.c is not None:
        yield of(g.c, g.m, g.n, out)
    yield g.workspace, g.workspace + WORKSPACE_BYTES


def check(node: Tensor, device: DeviceInfo = DEVICE, layout: Layout | None = None) -> None:
    nbytes = scratch_bytes(node, device)
    made, places = launched(node, device, layout)
    places.append((SCRATCH, SCRATCH + nbytes))
    for step in made:
        if isinstance(step, Gemm):
            for begin, end in ends(step):
                assert any(b <= begin and end <= e for b, e in places), (node, step)
            continue
        words = struct.unpack(f"@{len(step.args) // 8}Q", step.args[: len(step.args) // 8 * 8])
        within = [w - SCRATCH for w in words if w >> 40 == SCRATCH >> 40]
        # An address that nothing is at may be the end.
        assert all(w <= nbytes for w in within), (node, step.kernel.entry, nbytes)


@pytest.mark.parametrize("op", [s.name for s in all_ops()])
def test_cases(op: str) -> None:
    (spec,) = (s for s in all_ops() if s.name == op)
    for case in spec.cases():
        node = declare_case(spec, case)
        for device in (DEVICE, EQUAL):
            if supports(node, device.equal_bits):
                check(node, device)


@pytest.mark.parametrize("dtype", ["f32", "f16", "q4_0", "q6_K"])
@pytest.mark.parametrize("m", [1, 2, 4, 5, 7, 8, 9, 12, 13, 17, 64, 65, 130])
@pytest.mark.parametrize("k", [64, 2048, 2112, 14336, 40960])
def test_products_of_any_number_of_columns(dtype: str, m: int, k: int) -> None:
    t = dtype_by_name(dtype)
    k = max(t.block, k // t.block * t.block)
    g = Graph()
    x = g.input("x", F32, (m, k))
    gate, up, down = (g.weight(n, t, (48, k)) for n in ("gate", "up", "down"))
    for device in (DEVICE, EQUAL):
        check(g.mul_mat(gate, x), device)
        check(g.op("mul_mat_add", gate, x, g.input("r", F32, (m, 48))), device)
        check(g.op("mul_mat_swiglu", gate, up, x), device)
    idx = g.input("idx", F32, (m, 48))
    for scores in (None, idx):
        check(g.op("sparse_ffn", gate, up, down, x, scores))
        check(g.op("mul_mat_sparse", gate, x, scores))
        check(g.op("axpy_sparse", down, idx, scores))


@pytest.mark.parametrize("dtype", ["q4_0", "q6_K"])
@pytest.mark.parametrize("m", [1, 2, 5, 9, 16, 17, 32, 33, 64, 65, 128, 129])
@pytest.mark.parametrize("n, k", [(16, 256), (336, 2304), (4096, 14336), (20_480, 512)])
def test_products_of_weights_that_lie_as_fragments_too(dtype: str, m: int, n: int, k: int) -> None:
    """For what is asked before that is known."""
    g, t = Graph(), dtype_by_name(dtype)
    x, (gate, up) = g.input("x", F32, (m, k)), (g.weight(name, t, (n, k)) for name in ("a", "b"))
    norm = g.weight("norm", F32, (k,))
    nodes = (
        g.mul_mat(gate, x), g.op("mul_mat_swiglu", gate, up, x),
        g.op("norm_mul_mat", x, norm, gate, eps=1e-5),
        g.op("norm_mul_mat_swiglu", x, norm, gate, up, eps=1e-5),
    )  # fmt: skip
    for node, device in product(nodes, (MANY, DEVICE)):
        check(node, device, FRAGMENTS)
        srcs = [Operand.of(s, 0) for s in node.live_srcs()]
        if 1 < m <= 128:  # columns and sums of parts lie last
            (p,) = products(node, srcs)
            way = few if m <= 16 else many
            assert way.scratch_bytes(p, device) <= scratch_bytes(node, device)
