"""Every case of every op builds, and the numpy backend keeps to its memory."""

from __future__ import annotations

import pytest
from harness import all_cases, built_once, every, nmse, run_on

from gguflow.engine.backends.numpy import NumpyBackend
from gguflow.engine.graph import OpSpec


@pytest.mark.parametrize("spec, index", every(4, all_cases()))
def test_numpy_backend_runs_the_case(spec: OpSpec, index: int) -> None:
    """A change waits for some of every op: it does with each what the oracle does, which the native
    kernels are held to in all cases."""
    built = built_once(spec, index)
    assert nmse(run_on(NumpyBackend(), built), built.expected) == 0
