"""How many cards are chosen by the model of cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gguflow.engine.load.random import random_model
from gguflow.engine.options import Options
from gguflow.engine.scaling import Machine, choose_cards, find_machine

M = find_machine("h200")
SLOW = ((1024.0, 500.0), (1048576.0, 9000.0))


@pytest.mark.parametrize(
    "shape, most, options, machine, cards",
    [
        ("smollm2-135m:Q4_0", 4, {"split_mode": "tensor"}, M, 1),  # waits for kernels, not memory
        pytest.param("llama3-8b:F16", 2, {"split_mode": "tensor"}, M, 2, marks=pytest.mark.slow),
        # Exchanges as slow as a network's make every card one too many.
        ("llama3-8b:F16", 4, {"split_mode": "tensor"},
         replace(M, exchange=SLOW), 1),
        pytest.param("llama3-8b:F16", 4, {}, M, 1, marks=pytest.mark.slow),
        ("llama3-8b:F16", 4, {}, replace(M, memory_gib=6.5), 3),
        pytest.param("llama3-8b:F16", 4, {"split_mode": "tensor"},
                     replace(M, memory_gib=6.5, exchange=SLOW), 4, marks=pytest.mark.slow),
        ("llama3-8b:F16", 4, {}, replace(M, memory_gib=0.5), 4),  # for the loader to refuse
    ],
)  # fmt: skip
def test_the_number_of_cards(
    shape: str, most: int, options: dict[str, Any], machine: Machine, cards: int
) -> None:
    asked = Options(n_ctx=1024, **options)
    found, line = choose_cards(random_model(shape), asked, most, machine)
    assert found == cards and line.startswith(f"{cards} of {most} cards: ")
