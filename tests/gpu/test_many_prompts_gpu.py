"""Many prompts with guesses on a GPU: the texts without them."""

from __future__ import annotations

from typing import Any

import pytest
from test_speculation import alone, any_prompts, guessed, in_types, planted, prompts

from gguflow.cli.load import bundled_model, random_source
from gguflow.engine.limits import ALL_LAYERS, EqualBits
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.serving.speculation import Speculation
from gguflow.engine.serving.speculation_draft import DraftModel

pytestmark = pytest.mark.gpu

# 16-bit weights have the same bits with "few" and "many".
WEIGHTS: tuple[tuple[str, EqualBits], ...] = (("Q4_0", "few"), ("Q4_0", "many"), ("F16", "many"))
N_SEQS = (0, 1, 16)  # of engines; 0 for a session


@pytest.mark.parametrize("n_prompts", [50, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("weights", "mode"), WEIGHTS)
def test_a_draft_and_a_lookup(gpu: Any, weights: str, mode: EqualBits, n_prompts: int) -> None:
    """Greedy and at temperature 0.8, of the bundled model with its draft. Many plain texts come
    from an engine, which is sooner done."""
    options = Options(n_gpu_layers=ALL_LAYERS, n_ctx=256, equal_bits=mode)
    model = in_types(weights, open_model(bundled_model()), options)
    requests, few = prompts(model, n_prompts), n_prompts <= 50
    expected = alone(model, requests) if few else guessed(model, requests, 16)[0]
    draft = model.load_draft("bundled")
    for n_seqs in N_SEQS if few else (0, 16):
        model.speculate(Speculation(draft=draft, lookup=True, most=5, adaptive=False))
        found, drafting = guessed(model, requests, n_seqs)
        assert found == expected, n_seqs
        assert drafting.accepted > 5 * n_prompts and drafting.wasted > n_prompts


@pytest.mark.slow  # 5 and 16 GB of weights
@pytest.mark.parametrize(("weights", "mode"), WEIGHTS)
def test_planted_guesses_of_a_large_shape(gpu: Any, weights: str, mode: EqualBits) -> None:
    """8B's, with and without a draft of 1B's that is run for its time."""
    options = Options(n_gpu_layers=ALL_LAYERS, n_ctx=512, equal_bits=mode)
    model = Model.random(f"llama3-8b:{weights}", options)
    requests = any_prompts(model, 50, 200, 60)
    expected = alone(model, requests)
    draft = model.load_draft(random_source(f"llama3.2-1b:{weights}"))
    for n_seqs in N_SEQS:
        for drafts in (False, True):
            target = model.with_options(n_seqs=max(1, n_seqs))
            inner = DraftModel(draft, target) if drafts else None
            drafting = planted(model, requests, expected, n_seqs, inner)
            assert drafting.accepted > 500 and drafting.wasted > 100
