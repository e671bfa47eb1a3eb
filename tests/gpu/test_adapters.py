"""Adapters on a GPU: the logits of the same model on the processor, and requests in one batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_files import GREEDY, IDS, Made, generated, nmse

from gguflow.engine.limits import ALL_LAYERS
from gguflow.engine.model import Model
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request

pytestmark = pytest.mark.gpu


def test_adapters_on_the_device(gpu: Any, tmp_path: Path) -> None:
    made = Made(tmp_path)
    lora = tuple((f, s) for f, s in zip(made.files, (1.0, -0.5), strict=True))
    expected = Model.load(made.model, lora=lora).logits(IDS)
    model = Model.load(made.model, lora=lora, n_gpu_layers=ALL_LAYERS, n_seqs=4)
    assert nmse(model.logits(IDS), expected) < 1e-4
    choices = [None, (0.0, 0.0), (1.0, 0.0), (0.0, -2.0)]
    together = generated(Engine(model), [Request(IDS, 12, GREEDY, lora=c) for c in choices])
    for choice, found in zip(choices, together, strict=True):
        assert generated(Engine(model), [Request(IDS, 12, GREEDY, lora=choice)]) == [found]
    assert len({tuple(t) for t in together}) > 2 and np.isfinite(expected).all()
