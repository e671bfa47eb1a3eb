"""Plans that were made before anybody asked: on a GPU by runs of rows that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.limits import ALL_LAYERS
from gguflow.engine.model import Model
from gguflow.engine.sampling import SamplerSettings
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request

pytestmark = pytest.mark.gpu


def texts(engine: Engine) -> list[list[int]]:
    """Of prompts of many lengths, some at once."""
    found: dict[int, list[int]] = {}
    for i in range(12):
        ids = [1 + (i + j) % 60 for j in range(2 + 9 * i % 40)]
        found[engine.add(Request(ids, 3 + 2 * i, SamplerSettings(seed=i)))] = []
    while engine.has_work:
        for token in engine.step():
            assert token.error is None and token.id is not None
            found[token.request].append(token.id)
    return [*found.values()]


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3next", "qwen3moe"])
def test_they_leave_no_trace(gpu: Any, tmp_path: Path, arch: str) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, gain=2.0)
    model = Model.load(path, n_gpu_layers=ALL_LAYERS, n_ctx=128, n_ubatch=32, n_seqs=4)
    engine = Engine(model)
    first = texts(engine)
    states = {name: s.read(0, s.nbytes).copy() for name, s in engine._runner.states.items()}
    warming = engine.warming()
    while warming.step():
        pass
    for name, s in engine._runner.states.items():
        np.testing.assert_array_equal(s.read(0, s.nbytes), states[name])
    made = len(engine._runner._plans)
    again = Engine(model)
    warming = again.warming()
    while warming.step():
        pass
    found = texts(again)
    assert [len(t) for t in found] == [len(t) for t in first]
    assert len(again._runner._plans) == made
