"""Every op with every element type: refused, or launched as kernels that compile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from harness import declare_case
from kernel_list import entries_by_source, launches_of

from gguflow.engine.graph import Case, DType, OpSpec, ShapeError, Tensor, all_ops
from gguflow.engine.graph.dtype import all_dtypes, register_dtype
from gguflow.kernels.cuda import launch
from gguflow.kernels.cuda.launch import Launch, supports

FEW = 6  # about so many entries of a source are compiled: the others differ in one type


def _retyped(case: Case, dtype: DType) -> Iterator[Case]:
    """The case with `dtype` for one operand, and for all that have one type."""
    present = [i for i, o in enumerate(case.srcs) if o is not None]
    types = {o.dtype for o in case.srcs if o is not None}
    alike = [[i for i in present if case.srcs[i].dtype == t] for t in types]  # type: ignore[union-attr]
    for chosen in [*([i] for i in present), *alike]:
        srcs = list(case.srcs)
        for i in chosen:
            o = srcs[i]
            assert o is not None
            last = -(-o.shape[-1] // dtype.block) * dtype.block
            srcs[i] = replace(o, dtype=dtype.name, shape=(*o.shape[:-1], last), pad=())
        yield replace(case, srcs=tuple(srcs))


def nodes(spec: OpSpec, dtype: DType) -> Iterator[Tensor]:
    for case in (r for c in spec.cases() for r in _retyped(c, dtype)):
        try:
            yield declare_case(spec, case)
        except (ShapeError, ValueError):  # the op does not take this type
            continue


@cache
def untested_entries() -> dict[str, set[str]]:
    """Source -> entries that no case launches, over all ops and types."""
    known, found = entries_by_source(), dict[str, set[str]]()
    for spec in all_ops():
        for node in (n for t in all_dtypes() for n in nodes(spec, t) if supports(n)):
            for x in launches_of(node):
                if isinstance(x, Launch) and x.kernel.entry not in known[x.kernel.source]:
                    found.setdefault(x.kernel.source, set()).add(x.kernel.entry)
    return found


def _some(entries: set[str]) -> list[str]:
    ordered = sorted(entries)
    return ordered[:: max(1, len(ordered) // FEW)]


@pytest.mark.slow  # test_compile has every file for one architecture
@pytest.mark.parametrize("source", sorted(entries_by_source()))
def test_what_is_not_refused_compiles(nvrtc: Any, source: str) -> None:
    if entries := _some(untested_entries().get(source, set())):
        compiled = nvrtc.compile_source(source, entries, "sm_90")
        assert len(set(compiled.names)) == len(entries)


@pytest.mark.parametrize("spec", [pytest.param(s, id=s.name) for s in all_ops()])
def test_f64_is_only_moved(spec: OpSpec) -> None:
    f64 = next(t for t in all_dtypes() if t.name == "f64")
    taken = [n for n in nodes(spec, f64) if supports(n)]
    assert bool(taken) == (spec.name in ("cont", "concat", "repeat"))


@pytest.mark.parametrize("spec", [pytest.param(s, id=s.name) for s in all_ops()])
def test_a_type_without_a_block_struct_is_refused(
    spec: OpSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gguflow.engine.graph import dtype as types

    monkeypatch.setattr(types, "_BY_NAME", dict(types._BY_NAME))
    monkeypatch.setattr(types, "_BY_ID", dict(types._BY_ID))
    unknown = register_dtype(DType("q9_0", 9999, 32, 36, np.dtype(np.uint8)))
    assert not [n for n in nodes(spec, unknown) if supports(n)]
    assert not launch.has_cpp_type(unknown)
