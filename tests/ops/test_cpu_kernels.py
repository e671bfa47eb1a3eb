"""Every native CPU kernel against the oracle: all cases, every instruction set of this machine.

Results must also be the same to the bit on one, two and three threads, and whatever else is
computed in the same call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from harness import (
    all_cases,
    build_case,
    built_once,
    cases_of,
    every,
    in_place_sources,
    isas,
    nmse,
    run_on,
)

from gguflow.engine.backends.cpu import backend as cpu_backend
from gguflow.engine.backends.cpu.backend import CpuBackend
from gguflow.engine.graph import Case, Operand, OpSpec, all_ops, dtype_by_name, op_spec
from gguflow.engine.plan_key import PAGE

ISAS = isas()


@pytest.fixture(params=ISAS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CpuBackend:
    """The kernels of one instruction set, with no op too small for several threads."""
    monkeypatch.setattr(cpu_backend, "SINGLE_THREAD_BYTES", 0)
    return _backend(request.param)


@cache
def _backend(isa: str) -> CpuBackend:
    return CpuBackend(n_threads=3, isa=isa)


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _run(
    backend: CpuBackend, op: str, srcs: Sequence[Operand | None], **params: object
) -> np.ndarray:
    """The result of one op on explicit operands."""
    built = build_case(op_spec(op), Case(tuple(srcs), params), np.random.default_rng(0))
    return run_on(backend, built, n_threads=2)


def _f32(x: np.ndarray) -> Operand:
    return Operand(x.shape, "f32", x)


@pytest.mark.parametrize("isa", ISAS)
def test_every_op_has_a_kernel(isa: str) -> None:
    lib = _backend(isa).lib
    missing = [s for s in all_ops() if not lib.address(f"gf_op_{s.name}")]
    assert [s.name for s in missing if not s.optional] == []


def _with_isas(cases: list[Any]) -> list[Any]:
    """Each case with each instruction set, neighbours, for which it is drawn once. But for the best
    set all but every sixth case are slow: of the same sources they go through the same lines."""
    found = []
    for case, some in zip(cases, every(6, cases), strict=True):
        for i, isa in enumerate(ISAS):
            name, own = (isa.values[0], isa.marks) if isinstance(isa, ParameterSet) else (isa, ())
            p = some if i else case
            found.append(pytest.param(name, *p.values, id=f"{name}-{p.id}", marks=(*p.marks, *own)))
    return found


@pytest.mark.parametrize("backend, spec, index", _with_isas(all_cases()), indirect=["backend"])
def test_kernel(backend: CpuBackend, spec: OpSpec, index: int) -> None:
    built = built_once(spec, index)
    if spec.optional and not backend.supports(built.node):
        pytest.skip("optional, and there is no kernel")
    assert backend.supports(built.node)
    one = run_on(backend, built, n_threads=1)
    assert nmse(one, built.expected) <= built.tolerance
    for n in (2, 3):
        assert _same_bits(one, run_on(backend, built, n_threads=n)), f"{n} threads"
    for source in in_place_sources(built.node):
        taken = run_on(backend, built, n_threads=2, in_place=source)
        assert _same_bits(one, taken), f"in place of source {source}"


def _packable() -> list[Any]:
    """Cases with quantized weights, found without drawing and computing any."""
    return [p for p in all_cases() if not p.values[0].optional and _has_quantized(*p.values)]


def _has_quantized(spec: OpSpec, index: int) -> bool:
    given = [x for x in cases_of(spec)[index].srcs if x is not None and x.role == "weight"]
    return any(dtype_by_name(x.dtype).is_quantized for x in given)


@pytest.mark.parametrize("backend, spec, index", _with_isas(_packable()), indirect=["backend"])
def test_packed_weights(backend: CpuBackend, spec: OpSpec, index: int) -> None:
    built = built_once(spec, index)
    one = run_on(backend, built, n_threads=1, packed=True)
    assert nmse(one, built.expected) <= built.tolerance
    assert _same_bits(one, run_on(backend, built, n_threads=3, packed=True))


# -- accuracy beyond the cases --------------------------------------------------------------------


@pytest.mark.parametrize("op", ["exp", "sigmoid", "silu", "tanh", "gelu", "gelu_erf"])
def test_functions_are_accurate_everywhere(backend: CpuBackend, op: str) -> None:
    """Errors of a few units in the last place of the result, or of |x| where terms cancel."""
    x = np.concatenate([np.linspace(-20, 20, 40001), np.logspace(-30, 1.9, 999)]).astype(np.float32)
    actual = _run(backend, op, [_f32(x)]).astype(np.float64)
    expected = op_spec(op).reference(x).astype(np.float64)
    scale = np.abs(x) if op.startswith("gelu") else np.abs(expected)
    error = np.abs(actual - expected) / np.maximum(scale, np.finfo(np.float32).tiny)
    assert error.max() < 6e-7, f"at x = {x[error.argmax()]}"


def test_exp_at_the_ends_of_its_range(backend: CpuBackend) -> None:
    x = np.array([-np.inf, -104, -100, -87.4, 88.7, 88.73, np.inf, np.nan], np.float32)
    with np.errstate(over="ignore"):
        expected = np.exp(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(_run(backend, "exp", [_f32(x)]), expected, rtol=2e-7, atol=2e-45)


@pytest.mark.parametrize("op", ["silu", "tanh", "gelu_erf", "exp"])
def test_a_value_does_not_depend_on_its_position(backend: CpuBackend, op: str) -> None:
    x = np.random.default_rng(1).standard_normal(67).astype(np.float32)
    whole = _run(backend, op, [_f32(x)])
    for begin in range(1, 20):
        assert _same_bits(whole[begin:], _run(backend, op, [_f32(x[begin:])]))


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "soft_max"])
def test_a_row_does_not_depend_on_the_batch(backend: CpuBackend, op: str) -> None:
    x = np.random.default_rng(1).standard_normal((7, 333)).astype(np.float32)
    params = {} if op == "soft_max" else {"eps": 1e-5}
    together = _run(backend, op, [_f32(x)], **params)
    alone = [_run(backend, op, [_f32(row[None])], **params) for row in x]
    assert _same_bits(together, np.concatenate(alone))


# -- attention -------------------------------------------------------------------------------------


def _attend(
    backend: CpuBackend, q: np.ndarray, kv: Sequence[Operand], pos: Any, seq: Any, table: Any,
    **params: object,
) -> np.ndarray:  # fmt: skip
    where = [np.asarray(x, np.int32) for x in (pos, seq, table)]
    srcs = [_f32(q), *kv, *(Operand(x.shape, "i32", x) for x in where)]
    return _run(backend, "attention", srcs, scale=0.2, **params)


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize(
    "heads, hd, params",
    [
        ((8, 2), 64, {}),
        ((3, 3), 96, {}),
        ((6, 1), 32, {"window": 70}),
        ((4, 2), 32, {"softcap": 5.0, "max_bias": 8.0}),
        ((70, 1), 32, {}),  # more rows than a tile holds
    ],
)
def test_attention_does_not_depend_on_the_batch(
    backend: CpuBackend, dtype: str, heads: tuple[int, int], hd: int, params: dict[str, object]
) -> None:
    """A prompt at once, in pieces, token by token, among other sequences: the same bits."""
    n_tok, past = 37, 150
    rng = np.random.default_rng(2)
    q = rng.standard_normal((n_tok, heads[0], hd)).astype(np.float32)
    shape = (6 * PAGE, heads[1], hd)
    kv = [Operand(shape, dtype, rng.standard_normal(shape), role="state") for _ in range(2)]
    table = [[5, 0, 3], [1, 4, -1], [2, -1, -1]]
    pos = np.arange(past, past + n_tok)

    def run(rows: Any, pos: Any, seq: Any, **more: object) -> np.ndarray:
        return _attend(backend, q[rows], kv, pos, seq, table, **params, **more)

    whole = run(range(n_tok), pos, [0] * n_tok)
    pieces = [range(b, min(b + 5, n_tok)) for b in range(0, n_tok, 5)]
    assert _same_bits(whole, np.concatenate([run(r, pos[r], [0] * len(r)) for r in pieces]))
    for n_single in (0, 1):
        alone = [run([i], pos[[i]], [0], n_single=n_single) for i in range(20, 24)]
        assert _same_bits(whole[20:24], np.concatenate(alone))
    # Two tokens that are alone, ten and then twenty of another sequence and of this one, padding.
    rows = [20, 3, *range(10), *range(10, 30), 36]
    where = [*pos[[20]], 17, *range(70, 80), *pos[10:30], -1]
    seq = [0, 2, *[1] * 10, *[0] * 20, -1]
    told, untold = (run(rows, where, seq, n_single=n) for n in (2, 0))
    assert _same_bits(told, untold)
    assert _same_bits(told[[0]], whole[[20]])
    assert _same_bits(told[12:32], whole[10:30])
    assert _same_bits(told[2:12], run(range(10), range(70, 80), [1] * 10))
    assert not told[32].any()
    # Tokens of a sequence that are not neighbours.
    mixed = run([20, 3, 21], [*pos[[20]], 17, *pos[[21]]], [0, 2, 0])
    assert _same_bits(mixed, np.stack([whole[20], told[1], whole[21]]))


def test_attention_does_not_read_rows_beyond_the_position(backend: CpuBackend) -> None:
    """Cache rows not yet written, and pages of nobody, may hold anything."""
    rng = np.random.default_rng(3)
    q = rng.standard_normal((3, 4, 40)).astype(np.float32)
    kv = rng.standard_normal((2, 4 * PAGE, 2, 40)).astype(np.float32)
    dirty = np.full_like(kv, np.nan)
    table, window = [[2, 0, -1, 7]], 150  # a page that is not there, and one beyond the last
    dirty[:, 2 * PAGE :][:, :PAGE] = kv[:, 2 * PAGE :][:, :PAGE]
    dirty[:, :40] = kv[:, :40]
    clean, other = (
        _attend(backend, q, [_f32(x[0]), _f32(x[1])], [101, 102, 103], [0] * 3, table)
        for x in (kv, dirty)
    )
    assert _same_bits(clean, other)
    gone = _attend(backend, q, [_f32(x) for x in kv], [200, 101, 255], [0] * 3, table,
                   window=window)  # fmt: skip
    assert np.isfinite(gone).all()
    assert gone[:2].any() and gone[2].any()
    nowhere = _attend(backend, q, [_f32(x) for x in kv], [5, 5, 5], [1, -1, 1 << 30], table)
    assert not nowhere.any()


# -- sampling -----------------------------------------------------------------------------------


def test_sample_survives_logits_that_are_no_numbers(backend: CpuBackend) -> None:
    settings = Operand((2, 8), data=[0.8, 0, 0.9, 0.1, 1, 0, 0, 0])
    rng, history = Operand((2, 2), "i64", [1, 2]), Operand((2, 1), "i32", -1)
    logits = np.full((2, 500), np.nan, np.float32)
    logits[1, 321] = 1.0
    first, second = _run(backend, "sample", [_f32(logits), settings, rng, history])
    assert 0 <= first < 500
    assert second == 321
