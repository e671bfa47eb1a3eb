"""mul_mat_stream.cu and mul_mat_columns.cu: products of several columns, and what stands around
them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from harness import build_case, declare_case, nmse, run_on
from kernel_list import launches_of

from gguflow.engine.graph import Case, Operand, op_spec
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.kernels.cuda.launch import DeviceInfo, Launch, supports
from gguflow.kernels.cuda.launch import Operand as DeviceOperand
from gguflow.kernels.cuda.mul_mat_batch import applies
from gguflow.kernels.cuda.mul_mat_few import MOST as FEW

TYPES = ["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K",
         "q6_K"]  # fmt: skip
MANY = [2, 8, 9, 16, 17, 33, 64, 65, 128, 200]
EPS = {"eps": 1e-5}


def build(op: str, *srcs: Operand, oracle: bool = True, **params: Any) -> Any:
    return build_case(op_spec(op), Case(srcs, params), np.random.default_rng(0), oracle=oracle)


def declared(op: str, *srcs: Operand, **params: Any) -> Any:
    """The node, without any data."""
    return declare_case(op_spec(op), Case(srcs, params))


def weight(n: int, k: int, dtype: str) -> Operand:
    scaled = lambda rng, s: rng.standard_normal(s) / np.sqrt(k)  # noqa: E731
    return Operand((n, k), dtype, scaled, role="weight")


def allowed(dtype: str, m: int, built: Any) -> float:
    """Few columns of quantized weights are rounded to int8, others to 16 bits."""
    few = m <= FEW and dtype not in ("f16", "bf16")
    return float(built.tolerance if few else 5e-5)


def heads(
    types: tuple[str, str, str], m: int, state: str, mode: str, k: int = 512, make: Any = build
) -> Any:
    """norm_qkv_rope of three query heads, with some rows that go nowhere. make: or `declared`."""
    hd, rows = 64, (192, 64, 64)
    weights = (weight(n, k, t) for n, t in zip(rows, types, strict=True))
    pos = Operand((m,), "i32", lambda rng, shape: rng.integers(0, 4096, shape))
    where = Operand((m,), "i32", lambda rng, shape: rng.permutation(300)[: shape[0]] - 20)
    states = (Operand((256, n), state, role="state") for n in rows[1:])
    norm = Operand((k,), data=lambda rng, s: rng.uniform(0.5, 1.5, s), role="weight")
    params = {**EPS, "n_dims": hd, "head_dim": hd, "mode": mode}
    return make("norm_qkv_rope", Operand((m, k)), norm, *weights, pos, where, *states, **params)


def made_by(node: Any, device: DeviceInfo = DeviceInfo()) -> list[Launch]:  # noqa: B008
    return [s for s in launches_of(node, device=device) if isinstance(s, Launch)]


@pytest.mark.slow  # test_compile has every file with some types
@pytest.mark.parametrize("dtype", TYPES)
def test_compiles(nvrtc: Any, dtype: str) -> None:
    several = (5, 12, 32, 64, 128) if dtype == "q4_0" else (5, 12, 20)
    kernels = {
        s.kernel
        for m in several
        for s in made_by(build("mul_mat", weight(8, 512, dtype), Operand((m, 512))).node)
    }
    floats = {"columns_round.cu", "mul_mat_stream.cu", "mul_mat_tma.cu"}
    quantized = {"columns_int8.cu", "mul_mat_few.cu", "columns_round.cu", "mul_mat_columns.cu"}
    assert {k.source for k in kernels} == (floats if dtype in ("f16", "bf16") else quantized)
    for kernel in kernels:
        (name,) = nvrtc.compile_source(kernel.source, [kernel.entry], "sm_90", kernel.options).names
        assert name.startswith("_Z")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_only_where_the_instructions_are(arch: str) -> None:
    for m, archs in ((16, ("sm_90", "sm_100")), (17, ("sm_90",))):
        node = build("mul_mat", weight(8, 512, "q4_0"), Operand((m, 512))).node
        srcs = tuple(DeviceOperand.of(s, 0) for s in node.srcs)
        assert applies(node, srcs, DeviceInfo(arch)) == (arch in archs)


@pytest.mark.parametrize(
    "n, k",
    [(4096, 4096), (1024, 4096), (4096, 14336), (70, 512)],
)
def test_parts_of_k_do_not_depend_on_the_columns(n: int, k: int) -> None:
    def parts(m: int) -> int:
        node = declared("mul_mat", weight(n, k, "q8_0"), Operand((m, k)))
        return made_by(node)[1].grid[1]

    assert len({parts(m) for m in (20, 40, 100)}) == 1


def test_more_columns_than_that_are_a_librarys_where_it_takes_less_time() -> None:
    def by(n: int, k: int, m: int, dtype: str) -> str:
        made = launches_of(declared("mul_mat", weight(n, k, dtype), Operand((m, k))))
        return next((s.name for s in made if isinstance(s, Gemm)), "ours")

    assert by(4096, 4096, 512, "q4_0") == by(28672, 4096, 300, "q4_0") == "ours"
    for other in ((1024, 4096, 512, "q4_0"), (4096, 4096, 513, "q4_0"), (4096, 4096, 300, "q6_K"),
                  (4544, 4544, 512, "q4_0"), (4096, 2560, 512, "q4_0")):  # fmt: skip
        assert by(*other) == "cublas_bf16", other


def test_more_than_a_pass_goes_by_the_kernel_that_takes_less_time() -> None:
    """Without parts of k in blocks of their own where there are tiles enough."""
    found = {}
    for n, k in ((4096, 4096), (4096, 14336), (28672, 4096)):
        for m in (128, 256):
            made = made_by(declared("mul_mat", weight(n, k, "q4_0"), Operand((m, k))))
            found[n, k, m] = made[1].kernel.entry.split("<")[0].removeprefix("mul_mat_")
    assert {key for key, name in found.items() if name == "tiles"} == {
        (4096, 4096, 256), (28672, 4096, 256)
    }  # fmt: skip
    assert set(found.values()) == {"tiles", "columns"}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_fused_op_of_many_columns_is_its_parts_elsewhere(arch: str) -> None:
    node = heads(("q4_0",) * 3, 20, "f16", "norm").node
    assert supports(node)
    sources = [s.kernel.source for s in made_by(node, DeviceInfo(arch))]
    apart = {"norm.cu", "qkv_heads.cu"}
    assert apart <= set(sources) if arch == "sm_80" else not apart & set(sources)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("m", MANY)
def test_columns(gpu: Any, dtype: str, m: int) -> None:
    n, k = 333, 1280
    w, x = weight(n, k, dtype), Operand((m, k))
    norm = Operand((k,), data=lambda rng, s: rng.uniform(0.5, 1.5, s), role="weight")
    for op, srcs, params in (
        ("mul_mat", (w, x), {}),
        ("mul_mat_add", (w, x, Operand((m, n))), {}),
        ("mul_mat_add", (w, x, Operand((n,))), {}),
        ("mul_mat_swiglu", (w, weight(n, k, dtype), x), {}),
        ("norm_mul_mat", (x, norm, w), EPS),
        ("norm_mul_mat_swiglu", (x, norm, w, weight(n, k, dtype)), EPS),
    ):
        built = build(op, *srcs, **params)
        assert nmse(run_on(gpu, built), built.expected) < allowed(dtype, m, built)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "q4_0", "q6_K"])
@pytest.mark.parametrize("k", [4352, 14336])
@pytest.mark.parametrize("m", [7, 16, 40])
def test_long_rows(gpu: Any, dtype: str, k: int, m: int) -> None:
    built = build("mul_mat_add", weight(150, k, dtype), Operand((m, k)), Operand((m, 150)))
    assert nmse(run_on(gpu, built), built.expected) < allowed(dtype, m, built)


@pytest.mark.gpu
@pytest.mark.parametrize("types", [("q4_0",) * 3, ("f16",) * 3, ("q4_K", "q4_K", "q6_K")])
@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize("m", [3, 8, 13, 30, 70])
def test_heads(gpu: Any, types: tuple[str, str, str], mode: str, m: int) -> None:
    for state in ("f16", "f32"):
        built = heads(types, m, state, mode)
        assert nmse(run_on(gpu, built), built.expected) < allowed(types[0], m, built)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "q4_0", "q6_K"])
@pytest.mark.parametrize("op", ["mul_mat", "mul_mat_swiglu", "norm_mul_mat"])
@pytest.mark.parametrize("n", [300, 33_000])
@pytest.mark.parametrize("few, many", [((5, 9), 16), ((20, 64), 128)])
def test_a_column_does_not_depend_on_how_many_there_are(
    gpu: Any, dtype: str, op: str, n: int, few: tuple[int, ...], many: int
) -> None:
    x = np.random.default_rng(1).standard_normal((many, 512)).astype(np.float32)
    ws = [weight(n, 512, dtype) for _ in range(2 if op == "mul_mat_swiglu" else 1)]
    norm = Operand((512,), data=lambda rng, s: rng.uniform(0.5, 1.5, s), role="weight")

    def with_columns(columns: Operand, make: Callable[..., Any] = build) -> Any:
        fused = op.startswith("norm_")
        srcs = (columns, norm, *ws) if fused else (*ws, columns)
        return make(op, *srcs, **(EPS if fused else {}))

    def result(m: int) -> np.ndarray:
        unasked = partial(build, oracle=False)
        return run_on(gpu, with_columns(Operand((m, 512), "f32", x[:m]), unasked))

    for m, columns in ((20, 32), (64, 64), (128, 128)) if dtype != "f16" else ():
        made = made_by(with_columns(Operand((m, 512)), declared))
        kernels = [launch.kernel.entry for launch in made]
        assert any(k.startswith("mul_mat_columns<") and f", {columns}, " in k for k in kernels)
    if op.endswith("swiglu") and dtype == "f16":
        many = min(many, 64)  # more are a library's, which adds in another order
    whole = result(many)
    for m in few:
        assert result(m).tobytes() == whole[:m].tobytes()


def test_blocks_for_all_multiprocessors() -> None:
    """80 blocks of 128 columns leave 52 multiprocessors alone, 112 do not."""

    def columns(n: int, m: int) -> set[str]:
        srcs = (*(weight(n, 4096, "q4_0") for _ in range(2)), Operand((m, 4096)))
        made = made_by(declared("mul_mat_swiglu", *srcs))
        kernels = [launch.kernel.entry for launch in made]
        return {k.split(", ")[1] for k in kernels if k.startswith("mul_mat_columns<")}

    assert [columns(10_240, m) for m in (64, 128)] == [{"64"}, {"64"}]
    assert [columns(14_336, m) for m in (64, 128)] == [{"64"}, {"128"}]
