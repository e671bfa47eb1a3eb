"""The sparse feed-forward layer at the sizes of real models: rows that are streamed, lists that
many blocks share, groups of tokens, dense products of many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import build_case, nmse, results_of_runs, run_on
from kernel_list import DEVICE, launches_of
from sizes import fewer

from gguflow.engine.graph import Case, Operand, Tensor, op_spec
from gguflow.engine.ops._sparse import TYPES
from gguflow.kernels.cuda import axpy_sparse, sparse_ffn
from gguflow.kernels.cuda.launch import Launch
from gguflow.kernels.cuda.launch import Operand as At
from gguflow.kernels.cuda.sparse import SPARSE_TOKENS

EXACT = {"f32": 1e-10, "f16": 1e-10, "bf16": 1e-10}  # few tokens; the others quantize x


def scores(fraction: float, common: float = 0.5) -> Any:
    """idx whose entries are positive with this chance; `common` of the neurons never are."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        never = rng.uniform(size=shape[-1]) < common
        fires = rng.uniform(size=shape) < fraction / (1 - common)
        return np.where(fires & ~never, 1.0, -1.0) * rng.uniform(0.5, 1, shape)

    return draw


def case(
    t: str, n_embd: int, n_ff: int, m: int, fraction: float = 0.1, *, bucket: int = 0,
    cold: bool = False, idx: bool = True, down: str = "", gated: bool = True, **params: Any,
) -> Case:  # fmt: skip
    """gated: else up alone, with a bias."""
    n_rows = bucket or n_ff

    def scaled(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal(shape) / np.sqrt(shape[-1])

    w = Operand((n_rows, n_embd), t, scaled, role="weight")
    last = Operand((n_rows, n_embd), down or t, scaled, role="weight")
    neurons = lambda rng, s: np.sort(rng.choice(n_ff, s[0], replace=False))  # noqa: E731
    halves = lambda rng, s: rng.integers(0, 2, s)  # noqa: E731
    # Without a threshold to tell them, the length of gpu_idx says how many neurons there are.
    which = (
        Operand((m, n_ff), data=scores(fraction)) if idx else None,
        Operand((bucket,), "i32", neurons) if bucket else None,
        Operand((n_ff,), "i32", halves) if cold else None,
    )
    x = Operand((m, n_embd), data=lambda rng, s: rng.standard_normal(s))
    if not gated:
        return Case((None, w, last, x, *which, Operand((n_ff,))), params)
    return Case((w, w, last, x, *which), params)


CASES = [
    *(case(t, 2048, 700, m) for t in TYPES for m in (1, 2, 3, 6)),
    *(case(t, 2048, 700, 1, 1.0) for t in TYPES),
    *(case(t, 2048, 700, 2, bucket=333) for t in TYPES),
    *(case(t, 2048, 300, m, idx=False) for t in TYPES for m in (1, 5)),
    *(case(t, 2048, 300, m, 0.4, cold=True) for t in ("f16", "q4_K") for m in (1, 7, 8)),
    *(case(t, 2048, 300, m) for t in TYPES for m in (9, 21, 70)),
    *(case(t, 2048, 300, 40, bucket=200, cold=True) for t in ("f32", "f16", "q8_0")),
    *(case(t, 2048, 300, 40, idx=False) for t in ("bf16", "q6_K")),
    case("f16", 5120, 70, 1, 0.5),  # rows longer than the stages of a warp
    case("q4_0", 8192, 70, 4, 0.5),
    case("f16", 4096, 1001, 1, 0.0),
    case("f16", 192, 5000, 1),  # fewer slices than multiprocessors
    case("q8_0", 96, 5000, 6),
    case("f16", 2048, 300, 2, relu_up=1),
    case("f16", 2048, 300, 1, relu_up=1, idx=False),
    case("q4_K", 2048, 300, 1, 0.3, down="q6_K"),
    case("q4_0", 2048, 300, 33, 0.3, down="f16"),
    *(case(t, 2048, 700, m, gated=False) for t in TYPES for m in (1, 2, 6)),
    *(case(t, 2048, 700, 1, 1.0, gated=False) for t in TYPES),
    *(case(t, 2048, 701, 2, bucket=333, gated=False) for t in ("f16", "q4_0", "q6_K")),
    *(case(t, 2048, 300, m, idx=False, gated=False) for t in TYPES for m in (1, 5)),
    *(case(t, 2048, 301, m, 0.4, cold=True, gated=False) for t in ("f16", "q4_K") for m in (1, 7)),
    *(case(t, 2048, 300, m, gated=False) for t in TYPES for m in (9, 21, 70)),
    *(case(t, 2048, 300, 40, bucket=200, gated=False) for t in ("f32", "q8_0")),
    *(case(t, 2048, 300, 40, idx=False, gated=False) for t in ("bf16", "q6_K")),
    *(case("f16", 2048, 300, m, idx=False, bucket=123, gated=False) for m in (1, 4)),
    *(case("q4_0", 2048, 300, m, idx=False, cold=True, gated=False) for m in (1, 4)),
    case("f16", 4096, 1001, 1, 0.0, gated=False),
    case("f16", 192, 5000, 1, gated=False),
    case("f32", 75, 500, 3, gated=False),  # rows that are read by any layout
    case("q4_K", 2048, 300, 1, 0.3, down="q6_K", gated=False),
    *(case("f32", 2048, 300, m, cut=0.1, gated=g) for m in (1, 3, 40) for g in (True, False)),
    *(case("f32", 2048, 300, m, cut=0.1, gated=g, idx=False)
      for m in (1, 3, 40) for g in (True, False)),
    case("f32", 2048, 300, 2, cut=0.1, relu_up=1),
]  # fmt: skip


def around(c: Case) -> Case:
    """The layer of `c` with its norm and a residual: norm_sparse_ffn."""
    gate, up, down, x, *which = c.srcs
    assert x is not None
    norm = Operand(x.shape[-1:], data=lambda rng, s: rng.uniform(0.5, 1.5, s), role="weight")
    r = Operand(x.shape, data=lambda rng, s: rng.standard_normal(s) / 10)
    return Case((x, norm, gate, up, down, r, *which), {"eps": 1e-5, **c.params})


AROUND = [
    *(case(t, 2048, 300, m) for t in TYPES[1:] for m in (1, 5)),
    *(case(t, 2048, 300, 1, idx=False) for t in ("f16", "q8_0")),
    case("q4_0", 4096, 200, 2, bucket=123, relu_up=1),
    case("f16", 4096, 1001, 1, 0.0),
]


def name_of(c: Case) -> str:
    w, x = c.srcs[1], c.srcs[3]
    assert w is not None and x is not None
    names = ("idx", "bucket", "gpu_idx", "alone")
    which = "-".join(n for n, o in zip(names, c.srcs[4:], strict=False) if o is not None)
    which += "-cut" if "cut" in c.params else ""
    return f"{w.dtype}-{w.shape[0]}x{w.shape[1]}-m{x.shape[0]}-{which}"


@pytest.mark.gpu
@pytest.mark.parametrize("c", CASES, ids=name_of)
def test_sparse_ffn(gpu: Any, c: Case) -> None:
    built = build_case(op_spec("sparse_ffn"), c, np.random.default_rng(1))
    w, x = c.srcs[1], c.srcs[3]
    assert w is not None and x is not None
    few = x.shape[0] <= SPARSE_TOKENS[w.dtype] and not c.srcs[2].dtype.startswith("q")  # type: ignore[union-attr]
    tolerance = EXACT.get(w.dtype, built.tolerance) if few else built.tolerance
    assert nmse(run_on(gpu, built), built.expected) <= tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("c", AROUND, ids=name_of)
def test_with_norm_and_residual(gpu: Any, c: Case) -> None:
    built = build_case(op_spec("norm_sparse_ffn"), around(c), np.random.default_rng(1))
    assert gpu.supports(built.node)
    assert nmse(run_on(gpu, built), built.expected) <= built.tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("t", ["f16", "q4_0"])
@pytest.mark.parametrize("m, fraction", [(1, 0.1), (1, 1.0), (6, 0.1), (12, 0.1)])
def test_every_run_gives_the_same_bits(gpu: Any, t: str, m: int, fraction: float) -> None:
    for gated in (True, False):
        c = case(t, 2048, 3000, m, fraction, gated=gated)
        built = build_case(op_spec("sparse_ffn"), c, np.random.default_rng(1))
        assert len(results_of_runs(gpu, built, fewer(4, 20))) == 1


@pytest.mark.gpu
def test_the_parts_are_the_whole(gpu: Any) -> None:
    """Hot and cold halves of one layer add up to it, and so do the ops it is made of."""
    rng = np.random.default_rng(3)
    n_ff, n_embd = 900, 2048
    w = [(rng.standard_normal((n_ff, n_embd)) / 45).astype(np.float32) for _ in range(3)]
    x, idx = rng.standard_normal((2, n_embd)), scores(0.2)(rng, (2, n_ff))
    hot = np.sort(rng.choice(n_ff, 400, replace=False))
    mark = np.zeros(n_ff, np.int32)
    mark[hot] = 1

    def run(op: str, srcs: list[Any], **params: Any) -> np.ndarray:
        operands = tuple(
            None if s is None
            else Operand(s.shape, "i32", s) if s.dtype.kind == "i"
            else Operand(s.shape, "f16" if s.shape[0] > 2 else "f32", s)
            for s in srcs
        )  # fmt: skip
        return run_on(gpu, build_case(op_spec(op), Case(operands, params), rng))

    whole = run("sparse_ffn", [*w, x, idx])
    near = run("sparse_ffn", [*(v[hot] for v in w), x, idx, hot.astype(np.int32)])
    far = run("sparse_ffn", [*w, x, idx, None, mark])
    assert nmse(near + far, whole) < 1e-10
    gate, up = (run("mul_mat_sparse", [v, x, idx]) for v in w[:2])
    h = (np.maximum(gate, 0) * up).astype(np.float32)
    assert nmse(run("axpy_sparse", [w[2], h, idx]), whole) < 1e-10


# -- plans, without a GPU --------------------------------------------------------------------------


def planned(c: Case) -> tuple[Tensor, list[Any]]:
    from harness import declare_case

    node = declare_case(op_spec("sparse_ffn"), c)
    return node, launches_of(node)


def entries(c: Case) -> list[str]:
    return [s.kernel.entry if isinstance(s, Launch) else s.name for s in planned(c)[1]]


def test_a_token_is_two_kernels() -> None:
    _, (rows, axpy) = planned(case("f16", 4096, 11008, 1))
    assert rows.kernel.entry == "sparse_rows<GATED, f16, 1>"
    assert rows.grid == (132, 1, 1)
    assert axpy.kernel.entry == "axpy_stream<f16, 1, 2, 4>"
    assert axpy.grid == (16, 8, 1)
    assert rows.dependent and axpy.dependent
    assert rows.shared + axpy.shared + 3072 < DEVICE.shared_per_block  # both on a multiprocessor


def test_several_tokens_are_marked_first_and_go_by_groups() -> None:
    group = ["mark_rows", "sparse_rows<GATED, q, 8>", "axpy_stream<q, 8, 4, 5>"]
    last = ["sparse_rows<GATED, q, 1>", "axpy_stream<q, 1, 4, 5>"]
    found = [e.replace("block_q4_0", "q") for e in entries(case("q4_0", 4096, 11008, 9))]
    assert found == group + last


def test_many_tokens_are_dense_products() -> None:
    found = entries(case("f16", 4096, 11008, 512))
    assert found.count("cublas_f16") == 3 and "relu_gate" in found
    assert not any("sparse_rows" in e for e in found)


def test_without_a_gate_up_is_all_that_is_multiplied() -> None:
    rows, axpy = entries(case("f16", 4096, 11008, 1, gated=False))
    assert (rows, axpy) == ("sparse_rows<ALONE, f16, 1>", "axpy_stream<f16, 1, 2, 4>")
    *product, relu, axpy = entries(case("f16", 4096, 11008, 1, idx=False, gated=False))
    assert product and (relu, axpy) == ("relu_alone", "axpy_stream<f16, 1, 2, 4>")
    found = entries(case("f16", 4096, 11008, 512, gated=False))
    assert found.count("cublas_f16") == 2 and "relu_alone" in found


def test_a_cut_has_kernels_of_its_own() -> None:
    """Those of plain ReLU compare with a constant."""
    for m, idx, entry in ((1, True, "sparse_rows<CUT_GATED, f16, 1>"), (40, True, "cut_gate"),
                          (1, False, "sparse_rows<CUT_TIMES, f16, 1>")):  # fmt: skip
        found = entries(case("f16", 4096, 11008, m, idx=idx, cut=0.01))
        assert entry in found and entry not in entries(case("f16", 4096, 11008, m, idx=idx))


def test_without_idx_the_gate_is_computed_whole() -> None:
    found = entries(case("f16", 4096, 11008, 1, idx=False))
    assert found[1:] == ["sparse_rows<TIMES, f16, 1>", "axpy_stream<f16, 1, 2, 4>"]


@pytest.mark.parametrize("t", TYPES)
@pytest.mark.parametrize("m", [1, 2, 6])
@pytest.mark.parametrize("n_embd, n_ff", [(4096, 11008), (8192, 28672), (2048, 300), (64, 40)])
def test_shared_memory_fits_any_gpu(t: str, m: int, n_embd: int, n_ff: int) -> None:
    c = case(t, max(n_embd, 256), n_ff, m)
    node, steps = planned(c)
    for s in steps:
        assert s.shared <= DEVICE.shared_per_block - 1024
    w = At.of(node.srcs[2], 0)  # type: ignore[arg-type]
    small = replace(DEVICE, shared_per_block=99 << 10)
    for columns in (1, 2, 4, 8):
        assert axpy_sparse.plan(w, columns, small).shared <= 98 << 10


@pytest.mark.parametrize("c", [c for c in CASES if name_of(c).split("-m")[0].endswith("2048")],
                         ids=name_of)  # fmt: skip
def test_scratch_is_what_the_launches_use(c: Case) -> None:
    """Addresses in the launches' arguments lie in the scratch memory that is asked for."""
    node, steps = planned(c)
    base, nbytes = 1 << 30, sparse_ffn.scratch_bytes(node, DEVICE)
    for s in steps:
        if isinstance(s, Launch):
            words = np.frombuffer(s.args[: len(s.args) // 8 * 8], np.int64)
            near = words[(words >= base) & (words < base + (1 << 29))]
            assert (near < base + nbytes).all(), s.kernel.entry
