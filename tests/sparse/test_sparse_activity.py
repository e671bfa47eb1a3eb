"""What a sparse run computes against what fires."""

from __future__ import annotations

import numpy as np
import pytest
from relu_model import predictors

from gguflow.engine.graph import F32
from gguflow.engine.model import Model
from gguflow.engine.taps import tapped
from gguflow.engine.variants.relu.tools.activity import measure_activity
from gguflow.engine.variants.relu.tools.count import count_activations

IDS = [1, 9, 17, 33, 40, 7, 7, 60, 5, 6, 11, 80]


def load(path, **options) -> Model:
    return Model.load(path, k_type=F32, v_type=F32, **options)


def test_exactly_what_fires_is_computed(write_relu) -> None:
    path = write_relu()
    rows = measure_activity(load(path, sparse="exact"), IDS)
    stats = count_activations(load(path, sparse="off"), [IDS])
    assert [r.layer for r in rows] == ["blk.0", "blk.1"]
    for row, active in zip(rows, stats.active_fraction, strict=True):
        assert row.active == row.computed == pytest.approx(active)
        assert (row.recall, row.n_tokens) == (1.0, len(IDS))


def test_a_threshold_of_minus_infinity_computes_everything(write_relu) -> None:
    model = load(write_relu(), sparse="predict", sparse_threshold=-np.inf)
    for row in measure_activity(model, IDS):
        assert row.computed == row.recall == 1.0 and 0 < row.active < 1


def test_a_predictor_that_lets_through_nothing_finds_nothing(write_relu) -> None:
    model = load(write_relu(), sparse="predict", sparse_threshold=np.inf)
    rows = measure_activity(model, IDS)
    assert all(r.computed == 0 and r.recall == 0 and r.active > 0 for r in rows)


def test_recall_is_that_of_scores_and_gates(write_relu) -> None:
    """The first layer's input is that of the dense model, so it can be reckoned there."""
    path = write_relu()
    row = measure_activity(load(path, sparse="predict"), IDS)[0]
    dense, names = load(path, sparse="off"), ["blk.0.ffn.gate", "blk.0.attn.residual"]
    gate, x = (v.copy() for v in next(tapped(dense, names, [IDS])))
    p = predictors()
    scores = np.maximum(x @ p["blk.0.fc1.weight"].T, 0) @ p["blk.0.fc2.weight"].T
    fires, runs = gate > 0, scores >= 0
    assert row.active == pytest.approx(fires.mean())
    assert row.computed == pytest.approx(runs.mean(), abs=2e-3)
    assert row.recall == pytest.approx((fires & runs).sum() / fires.sum(), abs=4e-3)
    assert 0.05 < row.computed < 0.95


def test_a_dense_run_has_no_activity(write_relu) -> None:
    assert measure_activity(load(write_relu(), sparse="off"), IDS) == []
    assert measure_activity(load(write_relu(), sparse="exact"), []) == []
