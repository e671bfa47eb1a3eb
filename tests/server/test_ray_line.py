"""Two stages on one node: their calls go over a line, and end when the process does."""

from __future__ import annotations

import os
import signal
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
    ray = connect(LOCAL, 2)
    try:
        os.truncate(f.name, 0)
        assert mapping.data[9] == 0 and mapping.fault() == LOST  # though Ray takes such signals
        source = open_model(bundled_model())
        model = staged(ray, source, OPTIONS, 2, (), {"CPU": 1.0}, 60.0, 60.0)
        model.load_weights()
        assert np.array_equal(model.logits(IDS), expected)
        (stage,) = (b for b in model.backends.values() if isinstance(b, StageBackend))
        calls: Any = stage.calls
        assert calls._line is not None
        session = model.new_session()
        session.step(tuple(IDS), "last")
        pid = ray.get(calls._actor.__ray_call__.remote(lambda self: os.getpid()))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ClusterError, match="stage 1 is lost"):
            session.step((3,), "last")
    finally:
        disconnect()
