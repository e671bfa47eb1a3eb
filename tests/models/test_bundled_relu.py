"""The bundled ReLU model: small, sparse by itself, and worth predicting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gguflow.cli.main import main
from gguflow.engine.model import Model

PATH = Path(__file__).parents[2] / "models" / "bundled" / "tales-relu.gguf"


def test_it_fits_ten_megabytes_and_predicts() -> None:
    assert PATH.stat().st_size <= 10_000_000
    model = Model.load(PATH, sparse="predict")
    assert "".join(model.generate("Once upon a time", max_tokens=8, temperature=0)).strip()


def test_it_is_what_its_card_says(capfd: pytest.CaptureFixture[str]) -> None:
    """On a part of the held-out text: the whole takes half a minute (`gguflow sparse eval`)."""
    code = main(["sparse", "eval", "--chunks", "6", "-o", "json"])
    rows = {row["run"]: row for row in json.loads(capfd.readouterr()[0])}
    assert code == 0 and list(rows) == ["dense", "exact", "file's"]
    assert abs(rows["exact"]["above_dense"]) < 1e-3 and rows["exact"]["mean_kl"] < 1e-3
    own = rows["file's"]
    assert own["above_dense"] < 0.01
    n, computed, fired, missed = (
        sum(layer[key] for layer in own["layers"])
        for key in ("neurons", "computed", "fired", "missed")
    )
    assert fired / n < 0.2
    assert 1 - computed / n > 0.75
    assert 1 - missed / fired > 0.85
