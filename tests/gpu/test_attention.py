"""Attention at the sizes of real models: split decoding, tiled prefill, what they must not read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import build_case, nmse, results_of_runs, run_on
from kernel_list import DEVICE, launches_of

from gguflow.engine.graph import F32, I32, Case, Graph, Operand, dtype_by_name, op_spec
from gguflow.kernels.cuda import attention
from gguflow.kernels.cuda.launch import Launch

EXACT = {"f32": 1e-7, "f16": 1e-6, "bf16": 1e-4, "q8_0": 1e-6}


def case(
    n_tok: int, past: int, heads: tuple[int, int] = (32, 8), hd: int = 128, dtype: str = "f16",
    *, n_ctx: int = 0, pos: Any = None, clean: tuple[int, int] | None = None, **params: Any,
) -> Case:  # fmt: skip
    """`n_tok` tokens after `past` others. clean: the keys outside of [begin, end) are NaN."""
    n_ctx = n_ctx or past + n_tok + 70

    def cache(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        x = rng.standard_normal(shape).astype(np.float32)
        if clean is not None:
            x[: clean[0]] = x[clean[1] :] = np.nan
        return x

    where = np.arange(past, past + n_tok) if pos is None else np.asarray(pos)
    kv = Operand((n_ctx, heads[1], hd), dtype, cache, role="state")
    q = Operand((n_tok, heads[0], hd), data=lambda rng, shape: rng.standard_normal(shape))
    return Case((q, kv, kv, Operand((n_tok,), "i32", where)), {"scale": hd**-0.5, **params})


def run(gpu: Any, c: Case) -> np.ndarray:
    return run_on(gpu, build_case(op_spec("attention"), c, np.random.default_rng(1)))


def check(gpu: Any, c: Case) -> None:
    built = build_case(op_spec("attention"), c, np.random.default_rng(1))
    assert nmse(run_on(gpu, built), built.expected) <= EXACT[c.srcs[1].dtype]  # type: ignore[union-attr]


SHAPES = [((8, 2), 128), ((8, 2), 64), ((6, 2), 128), ((7, 7), 64), ((32, 1), 64)]
OPTIONS: list[dict[str, Any]] = [
    {}, {"window": 100}, {"softcap": 3.0}, {"max_bias": 8.0},
    {"window": 333, "softcap": 5.0, "max_bias": 4.0},
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n_tok, past", [(1, 0), (1, 126), (3, 127), (2, 1500), (11, 700)])
@pytest.mark.parametrize("heads, hd", SHAPES)
def test_decode(
    gpu: Any, heads: tuple[int, int], hd: int, n_tok: int, past: int, options: dict[str, Any]
) -> None:
    check(gpu, case(n_tok, past, heads, hd, **options))


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n_tok, past", [(65, 0), (130, 0), (128, 61), (300, 411)])
@pytest.mark.parametrize("heads, hd", SHAPES)
def test_prefill(
    gpu: Any, heads: tuple[int, int], hd: int, n_tok: int, past: int, options: dict[str, Any]
) -> None:
    check(gpu, case(n_tok, past, heads, hd, **options))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0"])
@pytest.mark.parametrize(
    "n_tok, past, hd", [(1, 900, 128), (4, 300, 64), (70, 200, 64), (97, 0, 128)]
)
def test_other_types(gpu: Any, dtype: str, n_tok: int, past: int, hd: int) -> None:
    check(gpu, case(n_tok, past, (8, 2), hd, dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("hd", [80, 96, 256])
@pytest.mark.parametrize("n_tok", [1, 70])
def test_other_head_sizes(gpu: Any, hd: int, n_tok: int) -> None:
    check(gpu, case(n_tok, 500, (4, 2), hd))


@pytest.mark.gpu
def test_a_long_context(gpu: Any) -> None:
    check(gpu, case(1, 8191, (8, 2)))
    check(gpu, case(1, 20_000, (4, 4), 64, "q8_0"))
    check(gpu, case(2, 40_000, (2, 1), 64))


@pytest.mark.gpu
@pytest.mark.parametrize("n_tok", [5, 90])
def test_any_order_of_positions_and_padding(gpu: Any, n_tok: int) -> None:
    pos = np.random.default_rng(5).integers(-1, 600, n_tok)
    pos[1] = -1
    check(gpu, case(n_tok, 600, (8, 2), pos=pos))
    check(gpu, case(n_tok, 600, (8, 2), pos=pos, window=40))
    nothing = case(n_tok, 600, (8, 2), pos=np.full(n_tok, -1), clean=(0, 0))
    assert not run(gpu, nothing).any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("n_tok, past", [(1, 0), (1, 400), (3, 97), (100, 230)])
def test_rows_that_nobody_sees_may_hold_anything(
    gpu: Any, dtype: str, n_tok: int, past: int
) -> None:
    for window in (0, 90):
        first = max(0, past - window + 1) if window else 0
        seen = (first, past + n_tok)
        clean, dirty = (
            run(gpu, case(n_tok, past, (8, 2), 64, dtype, clean=c, window=window))
            for c in (None, seen)
        )
        assert np.isfinite(dirty).all()
        assert clean.tobytes() == dirty.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_the_batch_changes_only_rounding(gpu: Any, dtype: str) -> None:
    whole = run(gpu, case(37, 150, (8, 2), 64, dtype))
    built = build_case(
        op_spec("attention"), case(37, 150, (8, 2), 64, dtype), np.random.default_rng(1)
    )
    q = built.feeds["src0"].view(np.float32).reshape(37, 8, 64)
    for begin in range(0, 37, 5):
        part = case(min(5, 37 - begin), 150 + begin, (8, 2), 64, dtype, n_ctx=257)
        small = build_case(op_spec("attention"), part, np.random.default_rng(1))
        small.feeds.update({k: built.feeds[k] for k in ("src1", "src2")})
        small.feeds["src0"] = np.ascontiguousarray(q[begin : begin + 5]).reshape(-1).view(np.uint8)
        small.after.update(small.feeds)
        found = run_on(gpu, small)
        assert nmse(found, whole[begin : begin + 5]) < (1e-12 if dtype == "f32" else 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("n_tok, dtype", [(1, "f16"), (1, "f32"), (6, "q8_0"), (200, "f16")])
def test_every_run_gives_the_same_bits(gpu: Any, n_tok: int, dtype: str) -> None:
    built = build_case(
        op_spec("attention"), case(n_tok, 3000, (8, 2), 64, dtype), np.random.default_rng(1)
    )
    assert len(results_of_runs(gpu, built, 20)) == 1


# -- plans, without a GPU --------------------------------------------------------------------------


def planned(n_tok: int, n_ctx: int, heads: tuple[int, int], hd: int, t: str = "f16") -> Launch:
    g, dtype = Graph(), dtype_by_name(t)
    q, pos = g.input("q", F32, (n_tok, heads[0], hd)), g.input("pos", I32, (n_tok,))
    kv = [g.state(name, dtype, (n_ctx, heads[1], hd)) for name in "kv"]
    node = g.attention(q, *kv, pos, scale=1.0)
    (launch,) = launches_of(node)
    splits = {"attention_decode.cu": launch.grid[1], "attention.cu": launch.grid[2]}
    if splits.get(launch.kernel.source, 1) > 1:
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        assert attention.scratch_bytes(node, DEVICE) >= 4 * blocks * (hd + 2)
    return launch


def test_few_tokens_share_the_cache_among_all_multiprocessors() -> None:
    one = planned(1, 8192, (32, 8), 128)
    assert (one.kernel.entry, one.grid) == ("attention_decode<f16, f16, 128, 1>", (8, 16, 1))
    eight = planned(8, 8192, (32, 8), 128)
    assert (eight.kernel.entry, eight.grid) == ("attention_decode<f16, f16, 128, 2>", (8, 8, 2))
    assert planned(1, 300, (32, 8), 128).grid == (8, 3, 1)


def test_many_tokens_are_tiles_of_rows() -> None:
    many = planned(512, 512, (32, 8), 64, "q8_0")
    assert many.kernel.entry == "attention_prefill<block_q8_0, block_q8_0, 64, 128>"
    assert many.grid == (8, 16, 1)


@pytest.mark.parametrize("hd, t", [(80, "f16"), (128, "f32"), (256, "bf16")])
def test_what_tensor_cores_do_not_take_runs_in_float(hd: int, t: str) -> None:
    assert planned(1, 4096, (16, 8), hd, t).kernel.source == "attention.cu"
    assert planned(1, 4096, (16, 8), hd, t).grid == (16, 1, 8)
    assert planned(512, 4096, (16, 8), hd, t).grid == (16, 512, 1)
