"""Drafts and settings of guesses that are refused, each in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny

from gguflow.cli.load import bundled_model
from gguflow.engine.backends.base import find_backend
from gguflow.engine.devices import Devices
from gguflow.engine.load.random import random_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.serving.speculation import Speculation, SpeculationError


def test_a_draft_with_another_vocabulary(tmp_path: Path) -> None:
    tiny = Model.load(write_tiny(tmp_path / "m.gguf"), n_threads=1)
    bundled = Model.load(bundled_model(), n_threads=1, n_ctx=256)
    with pytest.raises(SpeculationError, match=r"m\.gguf: 96 tokens, .*tales-8m\.gguf has 4096"):
        bundled.load_draft(tiny.source.path)
    with pytest.raises(SpeculationError, match=r"96 tokens.*4096.*same vocabulary"):
        bundled.speculate(Speculation(draft=tiny))


def test_a_draft_that_is_larger_than_the_memory_left() -> None:
    devices = Devices(lambda kind, k: find_backend(kind, {"device": k, "memory": 1 << 30}))
    options = Options(
        backends=("null:0",), devices=("null:0",), split_mode="none", n_ctx=512, weight_cache=False
    )
    model = Model(random_model("tinyllama-1.1b:Q4_0"), options, devices)
    model.load_weights()
    with pytest.raises(
        MemoryError,
        match=r"^tinyllama-1\.1b:Q4_0: no room for a draft: null:0: 637\.\d+ MiB are needed "
        r"\(weights .*only 4\d\d\.\d+ MiB of 1\.00 GiB are",
    ) as refused:
        model.load_draft(random_model("tinyllama-1.1b:Q4_0"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"most": 0}, "`most` 0"),
        ({"most": 65}, "`most` 65"),
        ({"least": 17}, "`least` 17"),
        ({"p_min": float("nan")}, "`p_min` nan"),
        ({"lookup": False}, "nothing guesses"),
    ],
)
def test_settings_that_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpeculationError, match=message):
        Speculation(**{"lookup": True} | fields)
