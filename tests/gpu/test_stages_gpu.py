"""Stages on GPUs of one machine run at the same time, those on one GPU in turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from staged import pipeline

from gguflow.cli.load import bundled_model
from gguflow.engine.limits import ALL_LAYERS
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.profile import Profile
from gguflow.engine.runtime.exchange import SideBySide
from gguflow.engine.sampling import SamplerSettings

pytestmark = pytest.mark.gpu

IDS = [5 + i % 90 for i in range(200)]
SETTINGS = SamplerSettings(seed=3)


@pytest.mark.parametrize("n", [2, 3])
def test_the_same_bits_as_in_one_process(gpu: Any, n: int) -> None:
    options = Options(devices=("cuda:0",), n_ctx=512, n_ubatch=64, n_batch=256, n_threads=2)
    others = [f"cuda:{k % gpu.n_alike}" for k in range(1, n)]
    path = Path(bundled_model())
    staged, calls = pipeline(path, options, n, *others)
    whole = Model.load(path, n_gpu_layers=ALL_LAYERS, n_ctx=512, n_ubatch=64, n_threads=2)
    found, expected = staged.new_session(), whole.new_session()
    at_once = gpu.n_alike >= n
    assert isinstance(found.bound_plan(1, "last", False).runner, SideBySide) == at_once
    assert found._runner.n_pieces > 1
    for _ in range(3):  # launched, captured, replayed
        found.rewind(0)
        expected.rewind(0)
        a, b = (s.prefill(IDS, None, "last")[0].copy() for s in (found, expected))
        assert np.array_equal(a, b)
        for token in IDS[:6]:
            a, b = (s.step((token,), "last")[0].copy() for s in (found, expected))
            assert np.array_equal(a, b)
    asked = IDS[:40], 60, SETTINGS
    assert [*found.generate(*asked)] == [*expected.generate(*asked)]
    asks, never = ("begin", "run") if at_once else ("run", "begin")
    assert all(asks in c.seen and never not in c.seen for c in calls)
    if not at_once:
        return
    profile = Profile("x", 1, {})
    found.profile = profile
    found.step((6,), "last")
    rows = [*profile.rows()]
    assert {f"stage:{k}" for k in range(1, n)} < {r.backend for r in rows}
    assert sum(r.us for r in rows if r.op == "signal") < 1e5
