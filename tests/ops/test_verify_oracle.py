"""The oracle in parts: columns at a time, tables of what is looked up: as the whole."""

from __future__ import annotations

import numpy as np
import pytest
from harness import built_once

from gguflow.engine.backends.host import read
from gguflow.engine.backends.numpy import NumpyBackend
from gguflow.engine.graph import OpSpec, all_ops
from gguflow.engine.verify.oracle import Oracle

IN_PARTS = [s for s in all_ops() if s.by_column or s.looks_up is not None]
A_COLUMN = 1  # bytes: no column fits, so each is computed by itself


@pytest.mark.parametrize("spec", IN_PARTS, ids=lambda s: s.name)
def test_parts_are_the_whole(spec: OpSpec) -> None:
    backend = NumpyBackend()
    n_cases = sum(1 for _ in spec.cases())
    for index in range(0, n_cases, max(1, n_cases // 12)):
        built = built_once(spec, index)
        if built.node.size > 5000:
            continue
        held = {leaf: built.feeds[name] for name, leaf in built.graph.leaves.items()}
        before = {t: raw.copy() for t, raw in held.items()}
        found = Oracle(backend, A_COLUMN).run(built.node, held, {})
        assert found.value is not None and not found.states
        np.testing.assert_allclose(found.value, built.expected, rtol=1e-5, atol=1e-6)
        assert all(np.array_equal(before[t], raw) for t, raw in held.items())


def test_states_are_told_and_left_alone() -> None:
    spec = next(s for s in all_ops() if s.name == "set_rows")
    built = built_once(spec, 0)
    held = {leaf: built.feeds[name].copy() for name, leaf in built.graph.leaves.items()}
    found = Oracle(NumpyBackend()).run(built.node, held, {})
    assert found.value is None
    (state,) = found.states
    after = read(state, {state: built.after[state.name]})
    assert np.array_equal(found.states[state], after, equal_nan=True)
    assert np.array_equal(held[state], built.feeds[state.name])
