"""16-bit weights times any number of columns: a column has the same bits alone and beside others,
whichever kernels or libraries multiply (float_columns.cuh), op by op, in the shapes of models."""

from __future__ import annotations

from typing import Any

import kernel_list
import numpy as np
import pytest
from harness import declare_case
from kernel_list import EQUAL, many_columns
from sizes import TOOL, smaller
from test_mul_mat_columns import declared, heads, made_by, weight
from test_mul_mat_tma import product_of

import gguflow.engine.ops  # noqa: F401  (registers the ops)
from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import F16, F32, I32, Case, Graph, Tensor, dtype_by_name, op_spec
from gguflow.engine.graph import Operand as Leaf
from gguflow.engine.quants import encode
from gguflow.kernels.cuda import mul_mat_tma
from gguflow.kernels.cuda.launch import Call, DeviceInfo, Launch, Operand, launches, scratch_bytes

MOST = 512
COUNTS = (
    1,
    2,
    3,
    8,
    9,
    16,
    17,
    33,
    64,
    65,
    128,
    129,
    300,
)  # beside which those of MOST are compared
HEAD_DIM, N_STATE = 128, 600
# (op, rows of each weight, elements of a row)
CASES = [
    ("mul_mat_add", (4096,), 4096),
    ("norm_mul_mat_swiglu", (14336, 14336), 4096),
    ("mul_mat_add", (4096,), 14336),
    ("norm_qkv_rope", (4096, 1024, 1024), 4096),
    ("norm_qkv_rope", (1024, 256, 256), 1280),
    ("mul_mat", (333,), 1280),
    ("mul_mat", (334,), 1280),
    ("norm_mul_mat", (20_001,), 1024),
    ("mul_mat_swiglu", (301, 301), 2048),
    ("mul_mat", (70,), 544),
]

# Of which a block has the fewest it may have.
FEW_ROWS = [("norm_mul_mat_swiglu", (96, 96)), ("norm_qkv_rope", (256, 128, 128))]


@pytest.fixture(scope="module")
def gpu(gpu: Any) -> Any:
    """The backend on which one column has these bits."""
    return find_backend("cuda", {"equal_bits": True})


class Product:
    """One op with its weights on the device, for any number of columns."""

    def __init__(
        self, gpu: Any, op: str, dtype: str, rows: tuple[int, ...], k: int, size: float = 1.0,
        mode: str = "norm", whole: bool = False,
    ) -> None:  # fmt: skip
        """whole: under a sanitizer too."""
        rng = np.random.default_rng(0)
        k = k if whole else smaller(k)  # and not the rows, of which the choice of a kernel depends
        self.gpu, self.op, self.rows, self.k, self.mode = gpu, op, rows, k, mode
        self.dtype, self.used, self.entries = dtype_by_name(dtype), [], []
        normal = lambda *shape: rng.standard_normal(shape, np.float32)  # noqa: E731

        def weight(n: int) -> np.ndarray:  # rows drawn from a few, which is sooner done
            few = encode(self.dtype, normal(64, k) / np.sqrt(np.float32(k)))
            return few.reshape(64, -1).view(np.uint8)[rng.integers(64, size=n)]

        self.w = [self._put(weight(n)) for n in rows]
        x = normal(MOST, k) * np.float32(size)
        x *= np.exp(normal(MOST, 1))  # lengths differ
        self.x, self.norm = self._put(x), self._put(rng.uniform(0.5, 1.5, k).astype(np.float32))
        self.r = self._put(normal(MOST, rows[0]))
        self.pos = self._put(rng.integers(0, 4096, MOST).astype(np.int32))
        self.at = self._put(rng.permutation(N_STATE)[:MOST].astype(np.int32))
        self.states = [self._put(np.zeros((N_STATE, n), np.float16)) for n in rows[1:]]
        self.dst = gpu.alloc(4 * MOST * rows[0])

    def _put(self, data: np.ndarray) -> Any:
        buffer = self.gpu.alloc(data.nbytes)
        buffer.write(0, data)
        return buffer

    def operand(self, t: Tensor, address: int) -> Operand:
        return Operand.of(t, address)

    def result(self, m: int, first: int = 0, n_single: int = 0) -> list[np.ndarray]:
        """Of m columns from the first on: the op's, and what it has written into states. n_single:
        how many of them are single."""
        g, k, n = Graph(), self.k, self.rows[0]
        at: dict[Tensor, int] = {}

        def leaf(name: str, dtype: Any, shape: tuple[int, ...], address: int) -> Tensor:
            made = (g.weight if name[0] == "w" else g.state if name[0] == "s" else g.input)(
                name, dtype, shape
            )
            at[made] = address
            return made

        x = leaf("x", F32, (m, k), self.x.address + 4 * k * first)
        norm = leaf("wn", F32, (k,), self.norm.address)
        ws = [leaf(f"w{i}", self.dtype, (rows, k), w.address)
              for i, (rows, w) in enumerate(zip(self.rows, self.w, strict=True))]  # fmt: skip
        eps = {"eps": 1e-5} if self.op.startswith("norm_") else {}
        if self.op == "norm_qkv_rope":
            pos = leaf("pos", I32, (m,), self.pos.address + 4 * first)
            to = leaf("rows", I32, (m,), self.at.address + 4 * first)
            n_kv = zip(self.rows[1:], self.states, strict=True)
            states = [leaf(f"s{i}", F16, (N_STATE, v), s.address) for i, (v, s) in enumerate(n_kv)]
            for s in self.states:
                s.write(0, np.full(s.nbytes, 0xA5, np.uint8))
            node = g.op(self.op, x, norm, *ws, pos, to, *states, n_dims=HEAD_DIM,
                        head_dim=HEAD_DIM, mode=self.mode, freq_base=5e5, **eps)  # fmt: skip
        else:
            before, beside = [x, norm] if eps else [], [] if eps else [x]
            if self.op == "mul_mat_add":
                beside.append(leaf("r", F32, (m, n), self.r.address + 4 * n * first))
            node = g.op(self.op, *before, *ws, *beside, **eps)
        node.n_single = n_single
        self.dst.write(0, np.full(4 * m * n, 0xA5, np.uint8))
        info, srcs = self.gpu.device.info, [None if s is None else self.operand(s, at[s])
                                            for s in node.srcs]  # fmt: skip
        scratch = self.gpu.alloc(max(256, scratch_bytes(node, info)))
        call = Call(node, Operand.of(node, self.dst.address), tuple(srcs), info, scratch.address)
        steps = launches(call)
        self.used = [s.kernel.source if isinstance(s, Launch) else s.name for s in steps]
        self.entries = [s.kernel.entry for s in steps if isinstance(s, Launch)]
        self.gpu.modules.prepare(s.kernel for s in steps if isinstance(s, Launch))
        for s in steps:
            self.gpu.modules.bind(s).issue()
        self.gpu.device.synchronize()
        found = [self.dst.read(0, 4 * m * n).view(np.uint32).reshape(m, n)]
        if self.op == "norm_qkv_rope":
            rows = self.at.read(0, 4 * MOST).view(np.int32)[first : first + m]
            for s, width in zip(self.states, self.rows[1:], strict=True):
                found.append(s.read(0, s.nbytes).view(np.uint16).reshape(N_STATE, width)[rows])
        return found


def launches_of(op: str, dtype: str, m: int, n: int, k: int) -> list[Launch]:
    """Of no data."""
    x = Leaf((m, k), data=0.0)
    ws = [Leaf((n, k), dtype, 0.0, role="weight") for _ in range(2 if "swiglu" in op else 1)]
    return made_by(declare_case(op_spec(op), Case((*ws, x))), EQUAL)


@pytest.mark.slow  # test_compile has every file with some types
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_compiles(nvrtc: Any, dtype: str) -> None:
    kernels = {
        s.kernel
        for op in ("mul_mat", "mul_mat_swiglu")
        for m in (1, 5, 12, 17, 100, 300)
        for n in (63, 64, 2560, 12000)
        for s in launches_of(op, dtype, m, n, 256)
    }
    kernels |= {s.kernel for s in many_columns()}
    for m in (1, 5, 12, 17, 100, 300):
        node = heads((dtype,) * 3, m, "f16", "norm").node
        kernels |= {s.kernel for s in made_by(node, EQUAL)}
    sources = {k.source for k in kernels}
    ours = {f"mul_mat_{x}.cu" for x in ("one_float", "chain", "tma", "tma_many", "wide", "rows")}
    assert ours | {"columns_turn.cu"} <= sources
    for source, options in {(k.source, k.options) for k in kernels}:
        entries = sorted(k.entry for k in kernels if k.source == source)
        assert len(nvrtc.compile_source(source, entries, "sm_90", options).names) == len(entries)


@pytest.mark.parametrize(
    "n, k, blocks", [(4095, 4096, 128), (4095, 14336, 128), (28671, 4096, 256)]
)
@pytest.mark.parametrize("m", [17, 64, 65, 128])
def test_narrow_tiles_fill_a_device_once(n: int, k: int, blocks: int, m: int) -> None:
    *_, launch = launches_of("mul_mat", "f16", m, n, k)
    assert launch.kernel.source == "mul_mat_wide.cu" and launch.grid == (blocks, 1, 1)
    assert 2 * (launch.shared + 1024) <= 228 << 10  # two blocks a multiprocessor


def products_of(m: int, n: int, k: int, n_single: int | None = None) -> list[str]:
    """What multiplies 16-bit weights with m columns, launch after launch."""
    node = declared("mul_mat", weight(n, k, "f16"), Leaf((m, k)))
    node.n_single = n_single
    steps = kernel_list.launches_of(node, device=EQUAL)
    found = [s.kernel.source if isinstance(s, Launch) else "a library" for s in steps]
    return [f for f in found if f not in ("columns_round.cu", "mul_mat_rows.cu")]


@pytest.mark.parametrize("n_single", [None, 0, 1])
def test_all_columns_are_added_in_the_same_parts(n_single: int | None) -> None:
    for m, kernel in ((1, "one_float"), (2, "tma"), (16, "tma"), (128, "tma")):
        assert products_of(m, 4096, 4096, n_single) == [f"mul_mat_{kernel}.cu"], m
    assert products_of(256, 4096, 14_336, n_single) == ["mul_mat_tma.cu"]
    assert products_of(257, 4096, 14_336, n_single) == ["mul_mat_tma_many.cu"]
    assert products_of(200, 4096, 4096, n_single) == ["mul_mat_tma_many.cu"]
    assert products_of(400, 28_672, 4096, n_single) == ["a library"]
    assert products_of(512, 28_672, 4096, n_single) == ["mul_mat_tma.cu"]  # blocks are full
    # Of an odd number there are no parts, and a library may have another order.
    assert products_of(128, 4095, 4096, n_single) == ["mul_mat_wide.cu"]
    assert products_of(129, 4095, 4096, n_single) == ["mul_mat_tma_many.cu"]
    # Nor are there of no whole 64 elements.
    assert products_of(300, 4096, 544, n_single) == ["a library"]


def test_no_part_of_k_is_empty() -> None:
    for k in (128, 256, 576, 1280, 4096, 8192, 14336):
        for n in (2, 334, 2048, 4096, 28_672):
            p = product_of(declared("mul_mat", weight(n, k, "f16"), Leaf((8, k))))
            parts = mul_mat_tma.parts_of(p, EQUAL)
            assert parts >= 1 and (parts - 1) * mul_mat_tma.length_of_parts(k, parts) < k


@pytest.mark.parametrize("k", [32, 96, 4096, 14336, 53248])
@pytest.mark.parametrize("m", [1, 2, 16])
def test_chains_of_any_length_have_room(m: int, k: int) -> None:
    for n in (70, 71) if m == 1 else (71,):  # several columns of pairs of rows are no chains
        *_, launch = launches_of("mul_mat", "f16", m, n, k)
        assert launch.kernel.source == f"mul_mat_{'one_float' if m == 1 else 'chain'}.cu"
        assert launch.shared <= DeviceInfo().shared_per_block


def test_blocks_share_the_tiles_of_a_long_matrix() -> None:
    for n, warps in ((4095, 2), (28_671, 4), (128_255, 4)):
        *_, launch = launches_of("mul_mat", "f16", 2, n, 256)
        assert launch.grid == (132, 1, 1) and launch.block == (32 * (warps + 3), 1, 1)


def runs(p: Product, m: int) -> bool:
    """racecheck stands still where a block of mul_mat_wide.cu fills a stage of weights again
    (docs/verify.md)."""
    return TOOL != "racecheck" or not 16 < m <= 128 or not any(n % 2 for n in p.rows)


def check(
    p: Product, whole: list[np.ndarray], m: int, first: int = 0, anyhow: bool = False
) -> str:  # fmt: skip
    """What differs between m columns by themselves and the same ones of all."""
    if not (anyhow or runs(p, m)):
        return ""
    found = p.result(m, first)
    differ = [int((a != b[first : first + m]).sum()) for a, b in zip(found, whole, strict=True)]
    return f"{m} columns from {first}: {differ} differ, by {p.used}" if any(differ) else ""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("op, rows, k", CASES)
def test_a_column_has_the_same_bits_beside_any_others(
    gpu: Any, op: str, rows: tuple[int, ...], k: int, dtype: str
) -> None:
    p = Product(gpu, op, dtype, rows, k)
    # A library has another order of rows that are no multiple of eight; some have no other kernel.
    ours = k % 64 == 0 and (op != "norm_qkv_rope" or all(n % 2 == 0 for n in rows))
    alone = any(n % 8 for n in rows) and not ours
    most = (128 if runs(p, 128) else 16) if alone else MOST
    whole = p.result(most)
    wrong = [check(p, whole, m) for m in COUNTS if m < most]
    some = (1, 77), (5, 90), (40, 60), (100, 211)
    wrong += [check(p, whole, m, first) for m, first in some if first + m <= most]
    assert not any(wrong), "\n".join(w for w in wrong if w)


@pytest.mark.gpu
@pytest.mark.parametrize("op, rows, k", [CASES[0], CASES[3]])
def test_classes_of_rows_do_not_count(gpu: Any, op: str, rows: tuple[int, ...], k: int) -> None:
    p = Product(gpu, op, "f16", rows, k)
    for m in (20, 160):
        whole = p.result(m)
        for n in (1, 15, m):
            found = p.result(m, n_single=n)
            assert all((a == b).all() for a, b in zip(found, whole, strict=True)), (m, n)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("op, rows", [*dict.fromkeys(case[:2] for case in CASES), *FEW_ROWS])
def test_rows_shorter_than_a_ring(gpu: Any, op: str, rows: tuple[int, ...], dtype: str) -> None:
    """Of which no stage is filled twice, and racecheck gets through."""
    p = Product(gpu, op, dtype, rows, 128)
    whole = p.result(128)
    differ = [check(p, whole, m, anyhow=True) for m in (1, 16, 17, 64, 65, 100)]
    assert not any(differ), "\n".join(d for d in differ if d)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_long_rows(gpu: Any, dtype: str) -> None:
    """Of whose columns a thread rounds two parts."""
    p = Product(gpu, "mul_mat", dtype, (64,), 8448, whole=True)
    whole = p.result(16)
    differ = [check(p, whole, m) for m in (1, 2, 9)]
    assert not any(differ), "\n".join(d for d in differ if d)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["norm", "neox"])
def test_turned_heads(gpu: Any, mode: str) -> None:
    p = Product(gpu, "norm_qkv_rope", "f16", (1024, 256, 256), 512, mode=mode)
    whole = p.result(MOST)
    wrong = [check(p, whole, m) for m in (1, 5, 16, 20, 90, 200)]
    assert not any(wrong), "\n".join(w for w in wrong if w)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1e-6, 1e5])
@pytest.mark.parametrize("op", ["mul_mat", "mul_mat_add", "mul_mat_swiglu"])
def test_columns_that_float16_cannot_hold(gpu: Any, op: str, size: float) -> None:
    p = Product(gpu, op, "f16", (200,) * (1 + op.endswith("swiglu")), 1024, size)
    whole = p.result(MOST)
    wrong = [check(p, whole, m) for m in (1, 2, 16, 17, 100, 129, 300)]
    assert not any(wrong), "\n".join(w for w in wrong if w)


@pytest.mark.gpu
@pytest.mark.parametrize("op, rows, k", [("mul_mat", (500,), 4096), ("norm_mul_mat", (77,), 14336)])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_results_are_the_products(
    gpu: Any, op: str, rows: tuple[int, ...], k: int, dtype: str
) -> None:
    """Against float64: not only equal but right."""
    p = Product(gpu, op, dtype, rows, k)
    raw = p.w[0].read(0, p.w[0].nbytes)
    bits = raw.view(np.uint16)
    halves = bits.view(np.float16) if dtype == "f16" else (bits.astype(np.uint32) << 16).view("f4")
    w = halves.astype(np.float64)
    x = p.x.read(0, p.x.nbytes).view(np.float32).reshape(MOST, p.k).astype(np.float64)
    if op.startswith("norm_"):
        norm = p.norm.read(0, p.norm.nbytes).view(np.float32)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * norm
    expected = x @ w.reshape(p.rows[0], p.k).T
    for m in (m for m in (1, 3, 16, 17, 64, 128, 200) if runs(p, m)):
        found = p.result(m)[0].view(np.float32)
        error = ((found - expected[:m]) ** 2).sum() / (expected[:m] ** 2).sum()
        assert error < (1e-6 if dtype == "f16" else 2e-5), m
