"""Of combinations of parameters those that a change waits for; the others are slow."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import product
from typing import Any

import pytest


def some_of(waited_for: Collection[tuple[Any, ...]], *values: Iterable[Any]) -> list[Any]:
    """Every combination of the values, as parameters, of which those not named are slow."""
    combinations = [*product(*values)]
    assert {*waited_for} <= {*combinations}
    return [
        pytest.param(*c, marks=[] if c in waited_for else pytest.mark.slow) for c in combinations
    ]
