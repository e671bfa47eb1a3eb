"""A second of seeded mutants of every target: what hours of them are run by is sound, and nothing
that was found comes back. Hours: python tests/fuzz/fuzz_drive.py TARGET."""

from __future__ import annotations

import pytest
from fuzz_drive import drive, targets

SECONDS = 1.0
LEAST = {"whole": 3, "requests": 20}  # inputs that ran; of the others, 30


@pytest.mark.parametrize("name", sorted(targets()))
def test_a_second_of_mutants(name: str) -> None:
    tally = drive(name, 400, SECONDS, seed=0)
    assert not tally.findings, tally.findings
    assert tally.outcomes["ran"] >= LEAST.get(name, 5), tally.outcomes
