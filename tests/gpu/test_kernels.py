"""Every CUDA kernel against the oracle, and what the cases of the specifications do not reach."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from harness import (
    GuardedMemory,
    all_cases,
    build,
    build_case,
    in_place_sources,
    nmse,
    results_of_runs,
    run_on,
)

from gguflow.engine.graph import Case, Operand, OpSpec, dtype_by_name, op_spec
from gguflow.engine.ops._common import QUANTS
from gguflow.engine.quants import encode

pytestmark = pytest.mark.gpu


def run(gpu: Any, op: str, srcs: list[Operand | None], **params: object) -> np.ndarray:
    """The result of one op on explicit operands."""
    built = build_case(op_spec(op), Case(tuple(srcs), params), np.random.default_rng(0))
    return run_on(gpu, built)


def check(gpu: Any, op: str, srcs: list[Operand | None], **params: object) -> None:
    """The op's result on explicit operands is the oracle's."""
    built = build_case(op_spec(op), Case(tuple(srcs), params), np.random.default_rng(0))
    assert nmse(run_on(gpu, built), built.expected) <= built.tolerance


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def f32(x: np.ndarray) -> Operand:
    return Operand(x.shape, "f32", x)


@pytest.mark.parametrize("spec, index", all_cases())
def test_kernel(gpu: Any, spec: OpSpec, index: int) -> None:
    built = build(spec, index)
    if not gpu.supports(built.node):
        pytest.skip("no CUDA kernel for this node: it runs on the CPU")
    result = run_on(gpu, built)
    assert nmse(result, built.expected) <= built.tolerance
    for source in in_place_sources(built.node):
        taken = run_on(gpu, built, in_place=source)
        assert same_bits(result, taken), f"in place of source {source}"


@pytest.mark.parametrize("op", ["mul_mat", "attention", "sum", "sample", "soft_max", "top_k"])
def test_runs_and_replays_give_the_same_bits(gpu: Any, op: str) -> None:
    """The first run launches, the second captures and the third replays."""
    built = build(op_spec(op), len(list(op_spec(op).cases())) // 2)
    assert len(results_of_runs(gpu, built, 4)) == 1


def test_profiled_runs_give_times_and_the_same_bits(gpu: Any) -> None:
    built = build(op_spec("soft_max"), 2)
    memory = GuardedMemory(gpu, built)
    program = gpu.lower([built.node], memory)
    program.run()
    plain = memory.bytes_of(built.node).copy()
    for _ in range(2):
        begin, end = program.run_timed().ns
        assert 0 < end - begin < 1_000_000_000
    assert same_bits(plain, memory.bytes_of(built.node))


# -- sizes and layouts beyond the cases ------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("n", [1, 7, 8, 1023, 4097, 1_000_003])
def test_dense_maps_do_every_element(gpu: Any, dtype: str, n: int) -> None:
    check(gpu, "neg", [Operand((n,), dtype)])
    check(gpu, "cpy", [Operand((n,), dtype)], type=0)
    check(gpu, "add", [Operand((n,), "f32"), Operand((n,), dtype)])


@pytest.mark.parametrize(
    "a, b",
    [
        ((70_000, 3, 5), (3, 5)),  # more rows than a grid has blocks in y
        ((70_000, 8), (8,)),
        ((2, 66_000, 256), (1, 1, 256)),
        ((3, 66_000, 2, 66), (1, 66_000, 1, 1)),
        ((2, 33_000, 2, 2), (2, 33_000, 1, 2)),
        ((5, 1, 1, 4096), (1, 1, 1, 4096)),
        ((1000, 1000), (1000, 1)),
        ((64, 30, 30), (64, 1, 1)),
        ((64, 2048), (16, 512)),
        ((300, 63), (100, 21)),
        ((3, 4_000_000), (4_000_000,)),  # b is more than the cache keeps
        ((2, 1100, 4096), (550, 2048)),
    ],
)
def test_bin_bcast_on_awkward_shapes(gpu: Any, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(gpu, "mul", [Operand(a), Operand(b)])


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("shape", [(130, 67), (64, 128), (3, 1000, 65), (2, 17, 3, 16)])
def test_copies_in_any_order_of_dimensions(gpu: Any, dtype: str, shape: tuple[int, ...]) -> None:
    for axes in permutations(range(len(shape))):
        x = Operand(tuple(shape[a] for a in axes), dtype, permute=axes)
        check(gpu, "cont", [x])
        check(gpu, "sqr", [x])
    check(gpu, "repeat", [Operand(shape, dtype)], r0=3, r1=2)
    check(gpu, "repeat", [Operand((3_000_000,), dtype)], r1=2)  # more than the cache keeps


@pytest.mark.parametrize(
    "shape", [(3, 8193), (700, 5, 33), (1, 200_000), (2, 8192), (3, 40_000), (9001, 37), (5000, 7)]
)
@pytest.mark.parametrize("op", ["sum", "mean", "max", "argmax"])
def test_reductions_of_many(gpu: Any, op: str, shape: tuple[int, ...]) -> None:
    for axis in range(-len(shape), 0):
        check(gpu, op, [Operand(shape)], axis=axis)


@pytest.mark.parametrize("k", [1, 40, 1024, 1025, 5000, 32_003])
def test_top_k_of_a_vocabulary(gpu: Any, k: int) -> None:
    few = lambda rng, shape: rng.integers(-50, 50, shape)  # noqa: E731
    check(gpu, "top_k", [Operand((2, 32_003))], k=k)
    check(gpu, "top_k", [Operand((2, 32_003), data=few)], k=k)


@pytest.mark.parametrize("d", [4096, 4099, 16_384])
def test_norms_of_wide_rows(gpu: Any, d: int) -> None:
    x, w = Operand((3, d)), Operand((d,), role="weight")
    check(gpu, "rms_norm_mul", [x, w], eps=1e-5)
    check(gpu, "layer_norm", [x, w, w], eps=1e-5)
    check(gpu, "soft_max", [x])


@pytest.mark.parametrize("dtype", ["f32", "f16", "q4_0", "q6_K"])
@pytest.mark.parametrize("n, k, m", [(1, 2560, 1), (300, 2560, 8), (300, 2560, 9), (129, 512, 130)])
def test_mul_mat_of_larger_sizes(gpu: Any, dtype: str, n: int, k: int, m: int) -> None:
    w = Operand((n, k), dtype, lambda rng, s: rng.uniform(0.5, 1.5, s), role="weight")
    check(gpu, "mul_mat", [w, Operand((m, k), data=lambda rng, s: rng.uniform(0.5, 1.5, s))])


@pytest.mark.parametrize("dtype", QUANTS)
def test_quantizers_give_the_bytes_of_the_numpy_codecs(gpu: Any, dtype: str) -> None:
    x = np.random.default_rng(4).standard_normal((5, 1024)).astype(np.float32)
    x[0, :300] = 0
    built = build_case(
        op_spec("cpy"),
        Case((f32(x),), {"type": dtype_by_name(dtype).ggml_id}),
        np.random.default_rng(),
    )
    memory = GuardedMemory(gpu, built)
    gpu.lower([built.node], memory).run()
    expected = np.ascontiguousarray(encode(dtype, x)).reshape(-1)
    np.testing.assert_array_equal(memory.bytes_of(built.node), expected)


# -- accuracy and independence ---------------------------------------------------------------------


@pytest.mark.parametrize("op", ["exp", "sigmoid", "silu", "tanh", "gelu", "gelu_erf"])
def test_functions_are_accurate_everywhere(gpu: Any, op: str) -> None:
    """Errors of a few units in the last place of the result, or of |x| where terms cancel."""
    x = np.concatenate([np.linspace(-20, 20, 40001), np.logspace(-30, 1.9, 999)]).astype(np.float32)
    actual = run(gpu, op, [f32(x)]).astype(np.float64)
    expected = op_spec(op).reference(x).astype(np.float64)
    scale = np.abs(x) if op.startswith("gelu") else np.abs(expected)
    error = np.abs(actual - expected) / np.maximum(scale, np.finfo(np.float32).tiny)
    assert error.max() < 6e-7, f"at x = {x[error.argmax()]}"


@pytest.mark.parametrize("dtype, ulp, tiny", [("f16", 2**-10, 6e-8), ("bf16", 2**-7, 1e-13)])
@pytest.mark.parametrize("op", ["exp", "sigmoid", "silu", "tanh", "gelu", "gelu_erf"])
def test_functions_of_every_16_bit_value(
    gpu: Any, op: str, dtype: str, ulp: float, tiny: float
) -> None:
    """At most the neighbour of the correctly rounded value, where the result is not tiny."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    if dtype == "f16":
        x = codes.view(np.float16).astype(np.float32)
    else:
        x = (codes.astype(np.uint32) << 16).view(np.float32)
    x = np.where(np.isfinite(x), x, 0)
    built = build_case(
        op_spec(op), Case((Operand(x.shape, dtype, x),), {}), np.random.default_rng(0)
    )
    actual, expected = (a.astype(np.float64) for a in (run_on(gpu, built), built.expected))
    finite = np.isfinite(expected)
    assert np.array_equal(actual[~finite], expected[~finite])
    error = np.abs(actual[finite] - expected[finite])
    excess = error - ulp * np.abs(expected[finite]) - tiny
    assert excess.max() <= 0, f"at x = {x[finite][excess.argmax()]}"


@pytest.mark.parametrize("op", ["sum", "argmax"])
def test_a_reduction_does_not_depend_on_the_others(gpu: Any, op: str) -> None:
    x = np.random.default_rng(1).standard_normal((5, 150_001)).astype(np.float32)
    together = run(gpu, op, [f32(x)], axis=-1)
    alone = [run(gpu, op, [f32(row[None])], axis=-1) for row in x]
    assert same_bits(together, np.concatenate(alone))
    columns = run(gpu, op, [f32(np.ascontiguousarray(x.T))], axis=-2)
    few = run(gpu, op, [f32(np.ascontiguousarray(x.T[:, :2]))], axis=-2)
    assert same_bits(columns[:, :2], few)


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "soft_max"])
def test_a_row_does_not_depend_on_the_batch(gpu: Any, op: str) -> None:
    x = np.random.default_rng(1).standard_normal((7, 333)).astype(np.float32)
    params = {} if op == "soft_max" else {"eps": 1e-5}
    together = run(gpu, op, [f32(x)], **params)
    alone = [run(gpu, op, [f32(row[None])], **params) for row in x]
    assert same_bits(together, np.concatenate(alone))


def test_attention_does_not_read_rows_beyond_the_position(gpu: Any) -> None:
    """Cache rows not yet written may hold anything."""
    rng = np.random.default_rng(3)
    q = rng.standard_normal((3, 4, 40)).astype(np.float32)
    kv = rng.standard_normal((2, 256, 2, 40)).astype(np.float32)
    pos, seq = Operand((3,), "i32", [98, 99, 100]), Operand((3,), "i32", 0)
    table = Operand((1, 4), "i32", [[2, 0, 1, 3]])  # so 37 rows of the first page are seen
    dirty = kv.copy()
    dirty[:, [*range(37, 128), *range(192, 256)]] = np.nan
    clean, other = (
        run(gpu, "attention", [f32(q), f32(c[0]), f32(c[1]), pos, seq, table], scale=0.1)
        for c in (kv, dirty)
    )
    assert same_bits(clean, other)


# -- sampling --------------------------------------------------------------------------------------


@pytest.mark.parametrize("top_k", [0, 1, 40, 64, 65, 1024, 1025])
@pytest.mark.parametrize(
    "temp, top_p, min_p",
    [(0.8, 0.95, 0.05), (1.0, 1.0, 0.0), (100, 0.999, 0), (0.7, 1.0, 0.02), (0, 1, 0)],
)
@pytest.mark.parametrize("width", [0.5, 4, 30])  # nearly all logits matter, thousands, a few
def test_sampling_from_a_vocabulary(
    gpu: Any, top_k: int, temp: float, top_p: float, min_p: float, width: float
) -> None:
    wide = lambda rng, shape: rng.standard_normal(shape) * width  # noqa: E731
    settings = [temp, top_k, top_p, min_p, 1.1, 64, 0, 0]
    history = lambda rng, shape: rng.integers(-1, 128_256, shape)  # noqa: E731
    srcs: list[Operand | None] = [
        Operand((4, 128_256), data=wide), Operand((4, 8), data=settings),
        Operand((4, 2), "i64", [(11, step) for step in range(4)]),
        Operand((4, 256), "i32", history),
    ]  # fmt: skip
    check(gpu, "sample", srcs)


@pytest.mark.parametrize("rows", [1, 8, 9, 70])
@pytest.mark.parametrize("n", [1, 63, 8191, 8192, 8193, 50_257, 128_256])
def test_rows_that_ask_for_different_things(gpu: Any, rows: int, n: int) -> None:
    kinds = [
        (0.0, 0, 1, 0, 1, 0), (0.8, 40, 0.95, 0.05, 1.1, 64), (1.0, 64, 1, 0, 1.5, -1),
        (0.0, 0, 1, 0, 2.0, -1), (2.0, 7, 0.9, 0, 0.5, 9),
        *([(0.9, 0, 0.95, 0, 1, 0), (1.0, 65, 1, 0.1, 1.2, 30)] if n < 60_000 else []),
    ]  # fmt: skip
    settings = [(*kinds[i % len(kinds)], 0, 0) for i in range(rows)]
    peaked = lambda rng, shape: rng.standard_normal(shape) * 4  # noqa: E731
    equal = lambda rng, shape: rng.integers(0, 3, shape)  # noqa: E731
    history = lambda rng, shape: rng.integers(-1, n + 1, shape)  # noqa: E731
    for logits in (peaked, equal):
        srcs: list[Operand | None] = [
            Operand((rows, n), data=logits), Operand((rows, 8), data=settings),
            Operand((rows, 2), "i64", [(i, 3 * i) for i in range(rows)]),
            Operand((rows, 100), "i32", history),
        ]  # fmt: skip
        check(gpu, "sample", srcs)


@pytest.mark.parametrize("rows", [1, 20])
def test_sample_survives_logits_that_are_no_numbers(gpu: Any, rows: int) -> None:
    rng = Operand((rows, 2), "i64", [(1, 2)] * rows)
    history = Operand((rows, 1), "i32", -1)
    for top_k in (0, 40):
        settings = Operand((rows, 8), data=[0.8, top_k, 0.9, 0.1, 1, 0, 0, 0])
        logits = np.full((rows, 5000), np.nan, np.float32)
        found = run(gpu, "sample", [f32(logits), settings, rng, history])
        assert ((found >= 0) & (found < 5000)).all()
        logits[:, 321] = 1.0
        assert (run(gpu, "sample", [f32(logits), settings, rng, history]) == 321).all()


# -- rows of the KV cache --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_rows_of_padding_are_dropped_and_zeros(gpu: Any, dtype: str) -> None:
    ids = Operand((6,), "i32", [3, -1, 0, -1, 8, 9])
    check(gpu, "get_rows", [Operand((9, 4096), dtype, role="weight"), ids])
    check(gpu, "set_rows", [Operand((9, 4096), dtype, role="state"), Operand((6, 4096)), ids])


@pytest.mark.parametrize(
    "m, types",
    [(1, ("q8_0",) * 3), (4, ("q8_0",) * 3), (8, ("q8_0",) * 3), (1, ("q4_K",) * 3),
     (1, ("q4_K", "q4_K", "q6_K")), (1, ("bf16",) * 3)],
)  # fmt: skip
def test_keys_and_values_are_written_where_the_rows_say(
    gpu: Any, m: int, types: tuple[str, str, str]
) -> None:
    k, hd = 2048, 128
    weights = [
        Operand((n * hd, k), t, role="weight") for n, t in zip((4, 2, 2), types, strict=True)
    ]
    states = [Operand((640, 2 * hd), "f16", role="state") for _ in "kv"]
    rows = np.random.default_rng(2).permutation(640)[:m]
    rows[1::3] = -1
    norm = Operand((k,), data=lambda rng, s: rng.uniform(0.5, 1.5, s), role="weight")
    srcs = [Operand((m, k)), norm, *weights, Operand((m,), "i32", np.arange(m) * 700),
            Operand((m,), "i32", rows), *states]  # fmt: skip
    rope = {"head_dim": hd, "n_dims": hd, "mode": "norm", "freq_base": 5e5}
    check(gpu, "norm_qkv_rope", srcs, eps=1e-5, **rope)


@pytest.mark.parametrize(
    "op, dtype", [("mul_mat_swiglu", "q4_0"), ("mul_mat_swiglu", "q4_K"), ("mul_mat_geglu", "q8_0")]
)
def test_gates_of_one_column(gpu: Any, op: str, dtype: str) -> None:
    weights = [Operand((333, 1024), dtype, role="weight") for _ in range(2)]
    check(gpu, op, [*weights, Operand((1, 1024))])
