"""A few seeded mutants of every target: what hours of them are run by is sound, and nothing that
was found comes back. Hours: python tests/fuzz/fuzz_drive.py TARGET."""

from __future__ import annotations

import pytest
from fuzz_drive import drive, targets

# Inputs, the corpus first: a minute of one core in all. A change waits for an eighth of them.
RUNS = {"consumers": 700, "inspect": 350, "whole": 420, "requests": 800, "tokenizers": 1400}


@pytest.mark.parametrize("share", [8, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(targets()))
def test_a_few_mutants(name: str, share: int) -> None:
    """The eighth are the first of the whole: the same seed."""
    tally = drive(name, RUNS.get(name, 2000) // share, 600, seed=0)
    assert not tally.findings, tally.findings
    assert tally.outcomes["ran"] >= len(targets()[name].corpus()) / 2, tally.outcomes
