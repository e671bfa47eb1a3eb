"""Two stages on one node: their calls go over a line, and end when the process does."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguflow.cli.load import bundled_model
from gguflow.engine.cluster.errors import ClusterError
from gguflow.engine.cluster.stage import StageBackend
from gguflow.engine.load import open_model
from gguflow.engine.mapped import LOST, MappedBytes
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.runtime.exchange import SideBySide

if find_spec("ray") is None:
    pytest.skip("ray is missing: pip install 'gguflow[ray]'", allow_module_level=True)

OPTIONS = Options(n_ctx=128, n_threads=1)
IDS = [5, 6, 7, 8, 9]


def test_stages_of_one_node_talk_over_a_line(tmp_path: Path) -> None:
    from gguflow.engine.cluster.connect import LOCAL, connect, disconnect
    from gguflow.engine.cluster.launch import staged

    expected = Model.load(bundled_model(), OPTIONS).logits(IDS)
    with open(tmp_path / "f", "w+b") as f:
        f.truncate(1 << 20)
        mapping = MappedBytes(f.fileno())
    ray = connect(LOCAL, 3)
    try:
        os.truncate(f.name, 0)
        assert mapping.data[9] == 0 and mapping.fault() == LOST  # though Ray takes such signals
        source = open_model(bundled_model())
        model = staged(ray, source, OPTIONS, 2, (), {"CPU": 1.0}, 60.0, 60.0)
        model.load_weights()
        assert np.array_equal(model.logits(IDS), expected)
        session = model.new_session()
        session.step(tuple(IDS), "last")
        check_devices_that_meet(ray)
        kill(ray, model)
        with pytest.raises(ClusterError, match="stage 1 is lost"):
            session.step((3,), "last")
    finally:
        disconnect()


def check_devices_that_meet(ray: Any) -> None:
    """Two processes that are devices of one machine run at once, in memory that both have."""
    from gguflow.engine.cluster.launch import staged

    source = open_model(bundled_model())
    options = replace(OPTIONS, devices=("simulated:0",), backends=("numpy",), n_ubatch=4)
    model = staged(ray, source, options, 2, (), {"CPU": 1.0}, 60.0, 60.0)
    model.load_weights()
    split = replace(options, devices=("simulated:0", "simulated:1"))
    whole = Model(source, split)
    whole.load_weights()
    found, expected = model.new_session(), whole.new_session()
    assert isinstance(found.bound_plan(1, "last", False).runner, SideBySide)
    for _ in range(2):
        a, b = (s.prefill([*IDS, *IDS], None, "last")[0] for s in (found, expected))
        assert np.array_equal(a, b)
        a, b = (s.step((3,), "last")[0] for s in (found, expected))
        assert np.array_equal(a, b)
    kill(ray, model)
    with pytest.raises(ClusterError, match="stage 1 is lost"):
        found.step((3,), "last")


def kill(ray: Any, model: Model) -> None:
    """The process of the second stage."""
    (stage,) = (b for b in model.backends.values() if isinstance(b, StageBackend))
    calls: Any = stage.calls
    assert calls._line is not None
    os.kill(ray.get(calls._actor.__ray_call__.remote(lambda self: os.getpid())), signal.SIGKILL)
