"""A few seeded mutants of every target: what hours of them are run by is sound, and nothing that
was found comes back. Hours: python tests/fuzz/fuzz_drive.py TARGET."""

from __future__ import annotations

import pytest
from fuzz_drive import drive, targets

# Inputs, the corpus first: a minute of one core in all.
RUNS = {"consumers": 200, "inspect": 100, "whole": 120, "requests": 250, "tokenizers": 400,
        "reader": 800}  # fmt: skip


@pytest.mark.parametrize("name", sorted(targets()))
def test_a_few_mutants(name: str) -> None:
    tally = drive(name, RUNS.get(name, 1500), 600, seed=0)
    assert not tally.findings, tally.findings
    assert tally.outcomes["ran"] >= len(targets()[name].corpus()) / 2, tally.outcomes
