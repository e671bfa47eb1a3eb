"""A few seeded mutants of every target: what hours of them are run by is sound, and nothing that
was found comes back. Hours: python tests/fuzz/fuzz_drive.py TARGET."""

from __future__ import annotations

import pytest
from fuzz_drive import drive, targets

# Inputs, the corpus first: about half a second each.
RUNS = {"consumers": 20, "inspect": 10, "whole": 12, "requests": 25, "tokenizers": 40, "reader": 80}


@pytest.mark.parametrize("name", sorted(targets()))
def test_a_few_mutants(name: str) -> None:
    tally = drive(name, RUNS.get(name, 150), 600, seed=0)
    assert not tally.findings, tally.findings
    assert tally.outcomes["ran"] >= len(targets()[name].corpus()) / 2, tally.outcomes
