"""Dimensions of length zero: an op refuses them or computes nothing, everywhere the same."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np
import pytest
from harness import Built, build_case, declare_case, isas, nmse, run_on

from gguflow.engine.backends.cpu.abi import Dims, GfOp, GfTensor
from gguflow.engine.backends.cpu.backend import CpuBackend
from gguflow.engine.backends.numpy import NumpyBackend
from gguflow.engine.graph import (
    F32,
    Case,
    Operand,
    OpSpec,
    ShapeError,
    all_ops,
    dtype_by_name,
    op_spec,
)
from gguflow.engine.quants import codec

MOST = 1 << 16  # elements that are left; larger cases are like others but for their size


@cache
def _backend(isa: str) -> CpuBackend:
    return CpuBackend(n_threads=2, isa=isa)


def _without(operand: Operand | None, axes: set[int]) -> Operand | None:
    """The operand with these axes empty; what is left of its data is zeros, or anything in types
    that are only read."""
    if operand is None or not axes:
        return operand
    shape = tuple(0 if a in axes else n for a, n in enumerate(operand.shape))
    dtype = dtype_by_name(operand.dtype)
    only_read = dtype.is_quantized and not codec(dtype).writable
    return replace(operand, shape=shape, data=None if only_read else 0)


def _emptied(case: Case) -> Iterator[Case]:
    """The case with the axes of one length empty, in all operands or in one."""
    lengths = {n for o in case.srcs if o for n in o.shape}
    for n in sorted(lengths):
        every = [{a for a, m in enumerate(o.shape) if m == n} if o else set() for o in case.srcs]
        yield replace(case, srcs=tuple(map(_without, case.srcs, every)))
        for i, axes in enumerate(every):
            for a in axes:
                one = tuple(_without(o, {a}) if j == i else o for j, o in enumerate(case.srcs))
                yield replace(case, srcs=one)


@cache
def _accepted(spec: OpSpec, whole: bool) -> list[Case]:
    """The emptied cases that shape inference accepts, each arrangement of shapes once, and if
    `whole` with each of the types; else with one, and each types with some arrangement."""
    found, seen = {}, set[object]()
    for case in (e for c in spec.cases() for e in _emptied(c)):
        what = tuple(o and (o.shape, o.dtype, o.pad, o.permute) for o in case.srcs)
        key = (what, tuple(sorted(case.params.items())))
        if key in found or sum(prod(o.shape) for o in case.srcs if o) > MOST:
            continue
        types = tuple(o and o.dtype for o in case.srcs)
        shapes = tuple(o and (o.shape, o.pad, o.permute) for o in case.srcs), key[1]
        if not whole and types in seen and shapes in seen:
            continue
        try:
            declare_case(spec, case)
        except ShapeError:
            continue
        found[key] = case
        seen |= {types, shapes}
    return list(found.values())


def test_there_are_such_cases() -> None:
    assert sum(1 for spec in all_ops() if _accepted(spec, False)) > 0.9 * len(all_ops())


@cache
def _built(spec: OpSpec, whole: bool) -> list[Built]:
    return [build_case(spec, case, np.random.default_rng(0)) for case in _accepted(spec, whole)]


WHOLE = pytest.mark.parametrize(
    "whole",
    [pytest.param(False, id="some"), pytest.param(True, id="whole", marks=pytest.mark.slow)],
)


@WHOLE
@pytest.mark.parametrize("op", [s.name for s in all_ops()])
def test_the_oracle_takes_what_shape_inference_accepts(op: str, whole: bool) -> None:
    spec = op_spec(op)
    for built in _built(spec, whole):
        assert built.expected.shape == built.node.shape
        assert nmse(run_on(NumpyBackend(), built), built.expected) == 0
        assert spec.bytes(built.node) >= 0 <= spec.flops(built.node)
        assert min(spec.cost_at(built.node, 0)) >= 0


@WHOLE
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("op", [s.name for s in all_ops()])
def test_the_cpu_does_as_the_oracle(op: str, isa: str, whole: bool) -> None:
    spec, backend = op_spec(op), _backend(isa)
    for built in _built(spec, whole):
        if spec.optional and not backend.supports(built.node):
            continue
        assert backend.supports(built.node)
        got = run_on(backend, built, n_threads=2)
        assert nmse(got, built.expected) <= built.tolerance, built.node


@pytest.mark.parametrize("isa", isas())
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
