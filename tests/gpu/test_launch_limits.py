"""Shapes too large for a launch are refused before there is one; nothing is allocated or run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from harness import declare_case
from kernel_list import launches_of

from gguflow.engine.graph import F32, Case, Graph, Operand, OpSpec, ShapeError, Tensor, all_ops
from gguflow.engine.ops._common import block_of
from gguflow.kernels.cuda.launch import (
    MAX_GRID_X,
    MAX_GRID_YZ,
    Launch,
    is_legal,
    launch_files,
    supports,
)

HUGE = (
    (1 << 18) + 256,
    5 << 20,
    (1 << 28) + 256,
    1 << 31,
    (1 << 33) + 256,
)  # whole blocks of any type


def _grown(case: Case, sizes: tuple[int, ...]) -> Iterator[Case]:
    """The case with the dimensions of one length huge, or one dimension of one operand."""
    for huge in sizes:
        for length in {n for o in case.srcs if o for n in o.shape}:
            yield _with(case, {(i, a): huge for i, a in _places(case, length)})
            for place in _places(case, length):
                yield _with(case, {place: huge})


def _places(case: Case, length: int) -> list[tuple[int, int]]:
    srcs = enumerate(case.srcs)
    return [(i, a) for i, o in srcs if o for a, n in enumerate(o.shape) if n == length]


def _with(case: Case, lengths: dict[tuple[int, int], int]) -> Case:
    def grown(i: int, o: Operand | None) -> Operand | None:
        if o is None:
            return None
        return replace(o, shape=tuple(lengths.get((i, a), n) for a, n in enumerate(o.shape)))

    return replace(case, srcs=tuple(grown(i, o) for i, o in enumerate(case.srcs)))


def _alike(o: Operand) -> tuple[object, ...]:
    return block_of(o.dtype) > 1, *(n if n in HUGE else n.bit_length() for n in o.shape)


@cache
def _nodes(spec: OpSpec, sizes: tuple[int, ...]) -> list[Tensor]:
    found, seen = [], set()
    for case in (g for c in spec.cases() for g in _grown(c, sizes)):
        # One of those that are much alike: not the same type, nor the same small lengths.
        what = tuple(o and (_alike(o), o.permute, bool(o.pad)) for o in case.srcs)
        key = (what, tuple(p for p in case.params.items() if not isinstance(p[1], float)))
        if key not in seen:
            seen.add(key)
            try:
                found.append(declare_case(spec, case))
            except ShapeError:
                continue
    return found


@pytest.mark.parametrize("sizes", [HUGE[1::2], pytest.param(HUGE[::2], marks=pytest.mark.slow)])
@pytest.mark.parametrize("spec", [pytest.param(s, id=s.name) for s in all_ops()])
def test_a_huge_shape_is_refused_or_launched_legally(spec: OpSpec, sizes: tuple[int, ...]) -> None:
    nodes = _nodes(spec, sizes)
    assert nodes or spec.name == "sample"  # which takes one row
    for node in nodes:
        if not supports(node):
            continue
        for made in launches_of(node):
            if isinstance(made, Launch):
                shapes = [t.shape for t in (node, *node.live_srcs())]
                assert is_legal(made.grid), (shapes, made.kernel.entry, made.grid)


def test_the_limits_are_those_of_the_programming_guide() -> None:
    assert is_legal((MAX_GRID_X, MAX_GRID_YZ, MAX_GRID_YZ)) and is_legal((1, 1, 1))
    assert not is_legal((MAX_GRID_X + 1, 1, 1)) and not is_legal((1, MAX_GRID_YZ + 1, 1))
    assert not is_legal((1, 1, MAX_GRID_YZ + 1)) and not is_legal((0, 1, 1))


@pytest.mark.parametrize(
    "shape, axis, takes",
    [
        ((1 << 31, 4), -1, True),  # 2^31 rows, 256 a block
        ((1 << 39, 4), -1, False),
        ((4, 65535 << 12, 8), -2, True),  # 65535 slices of columns
        ((4, (65535 << 12) + 1, 8), -2, False),
        ((1, 65535 << 15), -1, True),  # as many slices of a row
        ((1, (65535 << 15) + 1), -1, False),
        ((1, 1 << 31), -1, False),  # an index of 32 bits
    ],
)
@pytest.mark.parametrize("op", ["sum", "mean", "max", "argmax"])
def test_reductions(op: str, shape: tuple[int, ...], axis: int, takes: bool) -> None:
    g = Graph()
    node = g.op(op, g.input("x", F32, shape), axis=axis)
    assert supports(node) is takes
    if takes:
        assert all(is_legal(m.grid) for m in launches_of(node) if isinstance(m, Launch))


def test_small_nodes_are_not_launched_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph()
    node = g.add(g.input("x", F32, (512, 4096)), g.input("y", F32, (512, 4096)))
    monkeypatch.setattr(launch_files()["add"], "launches", None)
    assert supports(node)
