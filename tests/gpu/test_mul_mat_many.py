"""mul_mat with many columns: every layout that a library's product takes or must refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import build_case, nmse, run_on
from kernel_list import DEVICE, EQUAL, launches_of
from test_mul_mat_columns import declared

from gguflow.engine.graph import F16, F32, Case, Graph, Operand, op_spec
from gguflow.kernels.cuda.columns import GLU, PLAIN
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.kernels.cuda.launch import DeviceInfo, Launch
from gguflow.kernels.cuda.mul_mat_batch import MOST as COLUMNS
from gguflow.kernels.cuda.mul_mat_batch import TMA
from gguflow.kernels.cuda.mul_mat_few import MOST as FEW
from gguflow.kernels.cuda.mul_mat_vec import STATIC

TYPES = ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K",
         "q5_K", "q6_K"]  # fmt: skip


def build(op: str, *srcs: Operand) -> Any:
    return build_case(op_spec(op), Case(srcs), np.random.default_rng(0))


def uses_library(node: Any) -> bool:
    return any(isinstance(s, Gemm) for s in launches_of(node))


def check(gpu: Any, op: str, *srcs: Operand, library: bool | None = True) -> np.ndarray:
    """The result, which is the oracle's."""
    built = build(op, *srcs)
    if library is not None:
        assert uses_library(built.node) == library
    result = run_on(gpu, built)
    # float32 products lose next to nothing; rounding to 16 bits costs far less than allowed, to
    # int8, which is done for quantized weights and a few columns, all of that.
    few = srcs[0].dtype not in ("f32", "f16", "bf16") and built.node.shape[-2] <= FEW
    allowed = 1e-10 if srcs[0].dtype == "f32" else built.tolerance if few else 5e-5
    assert nmse(result, built.expected) < allowed
    return result


def weight(n: int, k: int, dtype: str, **more: Any) -> Operand:
    scaled = lambda rng, s: rng.standard_normal(s) / np.sqrt(k)  # noqa: E731
    return Operand((n, k), dtype, scaled, role="weight", **more)


# Kernels that have a test of their own.
HOPPER = ("columns_round.cu", "mul_mat_columns.cu", "columns_int8.cu", "mul_mat_few.cu")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_every_type_compiles(nvrtc: Any, arch: str) -> None:
    device = DeviceInfo(arch)
    made = {
        s.kernel
        for t in TYPES[3:]
        for m in (16, 99)
        for s in launches_of(
            declared("mul_mat", weight(8, 256, t), Operand((m, 256))), device=device
        )
        if isinstance(s, Launch) and s.kernel.source not in HOPPER
    }
    assert bool(made) == (arch != "sm_90")
    for source in {k.source for k in made}:
        entries = sorted({k.entry for k in made if k.source == source})
        assert len(nvrtc.compile_source(source, entries, arch).names) == len(entries)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "n, k, m", [(96, 768, 17), (300, 2560, 64), (129, 512, 130), (257, 1280, 9), (129, 512, 270)]
)
def test_sizes(gpu: Any, dtype: str, n: int, k: int, m: int) -> None:
    w, x = weight(n, k, dtype), Operand((m, k))
    floats = dtype in ("f16", "bf16") and m > 16
    library = dtype == "f32" or (floats and (m > TMA[PLAIN] or n % 2 > 0)) or m > COLUMNS
    check(gpu, "mul_mat", w, x, library=library)
    check(gpu, "mul_mat_add", w, x, Operand((m, n)), library=library)
    check(gpu, "mul_mat_add", w, x, Operand((n,)), library=library)
    gated = dtype == "f32" or m > (TMA[GLU] if floats else COLUMNS)
    check(gpu, "mul_mat_swiglu", w, weight(n, k, dtype), x, library=gated)


def assert_goes_to(kernel: str, made: list[Launch | Gemm]) -> None:
    """By how the entry of one of the launches begins, or "library"."""
    entries = ["library" if isinstance(s, Gemm) else s.kernel.entry for s in made]
    assert any(e.startswith(kernel) for e in entries), entries


@pytest.mark.parametrize(
    "dtype, n, k, m, kernel",
    [
        ("f16", 64, 4096, 2, "mul_mat_stream<f16, 1,"),
        ("f16", 64, 4096, 9, "mul_mat_stream<f16, 2,"),
        ("bf16", 64, 4096, 8, "mul_mat_stream<bf16, 1,"),
        ("bf16", 64, 4160, 8, "mul_mat_stream<bf16, 1,"),
        ("bf16", 64, 4160, 17, "mul_mat_tma<PLAIN, bf16, 32,"),
        ("f16", 64, 4096, 128, "mul_mat_tma<PLAIN, f16, 128,"),
        ("f16", 64, 4096, 193, "library"),
        ("f16", 65, 4096, 17, "library"),  # a row has no other one
        ("bf16", 64, 4128, 17, "library"),  # rows are no whole tiles
        ("f16", 64, 14336, 3, "mul_mat_stream<f16, 1,"),
        ("f16", 64, 4096, 1, "mul_mat_vec<PLAIN"),
        ("f32", 64, 4096, 2, "library"),
        ("f32", 64, 4096, 1, "mul_mat_vec<f32"),
        ("q4_0", 64, 4096, 1, "mul_mat_vec<PLAIN"),
        ("q4_0", 64, 4096, 2, "mul_mat_few<block_q4_0, block_q4_0, 1, 2, false>"),
        ("q4_0", 64, 4096, 3, "mul_mat_few<block_q4_0, block_q4_0, 1, 2, false>"),
        ("q4_0", 64, 4096, 16, "mul_mat_few<block_q4_0, block_q4_0, 2, 4, false>"),
        ("q4_K", 64, 4096, 17, "mul_mat_columns<block_q4_K, 32,"),
        ("q4_0", 64, 4160, 8, "library"),  # rows do not start at multiples of 16 bytes
        ("q6_K", 64, 32768, 8, "mul_mat_few<block_q6_K, block_q6_K, 1, 4, false>"),
    ],
)
def test_which_way_a_few_columns_go(dtype: str, n: int, k: int, m: int, kernel: str) -> None:
    node = declared("mul_mat", weight(n, k, dtype), Operand((m, k)))
    made = launches_of(node)
    assert_goes_to(kernel, made)
    # With equal bits many columns go the way of a few, see the next test. 17 to 128 columns of
    # 16-bit weights go the same way.
    other = m > FEW if dtype.startswith("q") else dtype in ("f16", "bf16")
    other &= "mul_mat_tma" not in kernel
    assert m == 1 or (launches_of(node, device=EQUAL) != made) == other


@pytest.mark.parametrize(
    "dtype, k, kib, wide",
    [
        ("f16", 4096, 227, True),
        ("bf16", 14336, 227, True),
        ("f16", 4096, 163, True),
        ("f16", 14336, 163, False),  # the column leaves no room for all the warps
        ("f16", 4096, 99, False),
        ("f16", 32768, 227, False),
        ("q8_0", 4096, 227, False),
    ],
)
def test_stages_of_one_column_are_longer_where_there_is_room(
    dtype: str, k: int, kib: int, wide: bool
) -> None:
    node = declared("mul_mat", weight(64, k, dtype), Operand((1, k)))
    (made,) = launches_of(node, device=DeviceInfo(shared_per_block=kib << 10))
    assert isinstance(made, Launch) and made.shared <= (kib << 10) - STATIC
    assert ("wide<" in made.kernel.entry) == wide
    assert made.kernel.entry.startswith("mul_mat_vec<PLAIN")


@pytest.mark.parametrize(
    "dtype, n, k, m, kernel",
    [
        ("f16", 64, 4096, 1, "mul_mat_one_float<PLAIN, f16, false, 256, false>"),
        ("f16", 64, 4096, 2, "mul_mat_tma<PLAIN, f16, 16,"),
        ("bf16", 64, 4096, 17, "mul_mat_tma<PLAIN, bf16, 32,"),
        ("bf16", 64, 4096, 128, "mul_mat_tma<PLAIN, bf16, 128,"),
        ("bf16", 64, 4096, 129, "mul_mat_tma<PLAIN, bf16, 192, 1,"),
        ("bf16", 64, 4096, 193, "mul_mat_tma_many<PLAIN, bf16, 32, 1>"),
        ("f16", 4096, 14336, 256, "mul_mat_tma<PLAIN, f16, 256, 1,"),
        ("f16", 4098, 14336, 512, "mul_mat_tma_many<PLAIN, f16, 128, 2>"),
        ("f16", 63, 4096, 129, "mul_mat_tma_many<PLAIN, f16, 32, 1>"),
        ("f16", 64, 4128, 129, "library"),
        (
            "f16",
            63,
            4096,
            1,
            "mul_mat_one_float<PLAIN, f16, false, 256, false>",
        ),  # rows are no pairs
        ("f16", 63, 4096, 2, "mul_mat_chain<PLAIN, f16, 1>"),
        ("bf16", 63, 4096, 17, "mul_mat_wide<PLAIN, bf16, 16, 1>"),
        ("f16", 63, 4096, 128, "mul_mat_wide<PLAIN, f16, 16, 2>"),
        ("bf16", 64, 4128, 16, "mul_mat_chain<PLAIN, bf16, 2>"),  # nor whole tiles
        ("f16", 64, 4128, 17, "library"),
        ("f16", 64, 4104, 1, "mul_mat_vec<f16"),  # nor whole steps
    ],
)
def test_which_way_columns_go_for_equal_bits(
    dtype: str, n: int, k: int, m: int, kernel: str
) -> None:
    node = declared("mul_mat", weight(n, k, dtype), Operand((m, k)))
    made = launches_of(node, device=EQUAL)
    assert_goes_to(kernel, made)
    assert all(s.whole for s in made if isinstance(s, Gemm))


@pytest.mark.parametrize(
    "dtype, k, faster, equal",
    [
        ("f16", 4096, "mul_mat_vec<PLAIN", "mul_mat_one_float<PLAIN, f16"),
        ("f32", 4096, "mul_mat_vec<f32", "mul_mat_vec<f32"),
        ("q4_0", 4096, "mul_mat_vec<PLAIN", "mul_mat_one<PLAIN, block_q4_0"),
        ("q4_0", 4160, "mul_mat_vec<block_q4_0", "mul_mat_vec<block_q4_0"),  # no whole chunks
        ("q6_K", 1280, "mul_mat_vec<block_q6_K", "mul_mat_few<block_q6_K"),  # rows at odd places
        ("iq4_nl", 4096, "mul_mat_vec<PLAIN", "mul_mat_vec<PLAIN"),
    ],
)
def test_which_way_one_column_goes(dtype: str, k: int, faster: str, equal: str) -> None:
    node = declared("mul_mat", weight(64, k, dtype), Operand((1, k)))
    for device, entry in ((DEVICE, faster), (EQUAL, equal)):
        *_, last = launches_of(node, device=device)
        assert isinstance(last, Launch) and last.kernel.entry.startswith(entry)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("k, m", [(512, 5), (512, 8), (2112, 7), (16640, 3), (33024, 6)])
def test_few_columns(gpu: Any, dtype: str, k: int, m: int) -> None:
    if dtype.endswith("_K"):
        k = k // 256 * 256
    w, x = weight(70, k, dtype), Operand((m, k))
    for op, srcs in (
        ("mul_mat", (w, x)),
        ("mul_mat_add", (w, x, Operand((m, 70)))),
        ("mul_mat_swiglu", (w, weight(70, k, dtype), x)),
    ):
        built = build(op, *srcs)
        assert nmse(run_on(gpu, built), built.expected) <= built.tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_broadcast_and_permuted_batches(gpu: Any, dtype: str) -> None:
    for w, x in (((2,), (6,)), ((1, 1), (2, 3)), ((2, 3), (2, 6)), ((3, 1), (3, 4)), ((1,), (2,))):
        # One matrix for all rows is a kernel of ours.
        library = dtype == "f32" or any(n > 1 for n in w)
        check(gpu, "mul_mat", Operand((*w, 20, 64), dtype), Operand((*x, 12, 64)), library=library)
    swap = (1, 0, 2)
    x = Operand((4, 12, 64), permute=swap)
    w = Operand((2, 20, 64), dtype, permute=swap)
    check(gpu, "mul_mat", w, x, library=dtype != "f32")
    check(gpu, "mul_mat", Operand((2, 3, 20, 64), dtype), Operand((4, 3, 12, 64)), library=False)
    r = Operand((2, 2, 12, 20), pad=(0, 1, 1, 5))
    check(gpu, "mul_mat_add", Operand((2, 2, 20, 64), dtype), Operand((2, 2, 12, 64)), r)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["q4_0", "q6_K"])
def test_views_of_quantized_weights_go_another_way(gpu: Any, dtype: str) -> None:
    w = Operand((20, 512), dtype, pad=(0, 512))
    check(gpu, "mul_mat", w, Operand((12, 512)), library=False)
    check(gpu, "mul_mat", w, Operand((70, 512)), library=False)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0", "f32"])
@pytest.mark.parametrize("op", ["mul_mat", "mul_mat_add", "mul_mat_swiglu"])
def test_rows_that_float16_cannot_hold(gpu: Any, op: str, dtype: str) -> None:
    """Each row is right by itself: the largest does not hide the others."""
    factors = np.array([[10.0**e] for e in (0, 4, 5, 8, -3, 6, 0, 15, -6, 4.5, 4.8, 2)])
    n, k = 40, 256
    x = Operand((12, k), data=lambda rng, s: rng.standard_normal(s) * factors)
    ws = [weight(n, k, dtype) for _ in range(2 if op == "mul_mat_swiglu" else 1)]
    rest = [Operand((12, n))] if op == "mul_mat_add" else []
    built = build(op, *ws, x, *rest)
    allowed = built.tolerance if dtype == "q8_0" else 5e-5  # to int8, or to 16 bits
    for row, expected in zip(run_on(gpu, built), built.expected, strict=True):
        assert nmse(row, expected) < allowed


@pytest.mark.gpu
def test_a_row_does_not_depend_on_how_large_others_are(gpu: Any) -> None:
    x = np.random.default_rng(1).standard_normal((12, 64)).astype(np.float32)
    large = x.copy()
    large[3] *= 1e7
    w = weight(24, 64, "f16")
    first, second = (
        check(gpu, "mul_mat", w, Operand(v.shape, "f32", v), library=None) for v in (x, large)
    )
    keep = np.arange(12) != 3
    assert first[keep].tobytes() == second[keep].tobytes()


@pytest.mark.gpu
def test_products_of_one_value_share_its_rounded_form(gpu: Any) -> None:
    """The second product does not round x again; the one after a product of y does."""
    rng = np.random.default_rng(2)
    g = Graph()
    leaves = {g.input(n, F32, (16, 64)): rng.standard_normal((16, 64), np.float32) for n in "xy"}
    x, y = leaves
    nodes = []
    for i, v in enumerate((x, x, y, x)):
        w = g.weight(f"w{i}", F16, (32, 64))
        leaves[w] = rng.standard_normal((32, 64)).astype(np.float16)
        nodes.append(g.op("mul_mat", w, v))
    places = {t: gpu.alloc(t.nbytes) for t in (*leaves, *nodes)}
    for t, data in leaves.items():
        places[t].write(0, data)
    memory = SimpleNamespace(locate=lambda t: (places[t], 0), is_packed=lambda t: False)
    program = gpu.lower(nodes, memory)
    assert ["round_" in k for k in program.kernels] == [True, False, True, True]
    for _ in range(3):
        program.run()
        for node in nodes:
            w, v = (leaves[s].astype(np.float64) for s in node.srcs)
            found = places[node].read(0, node.nbytes).view(np.float32).reshape(node.shape)
            assert nmse(found, v @ w.T) < 1e-6
