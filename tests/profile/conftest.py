"""Profiles whose every number is known beforehand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from known_plan import HOST_US, N_LAYERS, OP_US, OUTPUT_US, PEAKS, clock_reads, plan

from gguflow.engine.profile import Profile

MakeProfile = Callable[..., Profile]


@pytest.fixture
def make_profile() -> MakeProfile:
    """make_profile(n_decode, n_prefill=1, slower=1): every step as long as OP_US says."""

    def make(n_decode: int, n_prefill: int = 1, slower: float = 1.0) -> Profile:
        profile = Profile("tiny", threads=2, peaks={"cpu": PEAKS}, facts={"type": "Q4_0"})
        rows = plan()
        us = [slower * u for u in [*OP_US.values()] * N_LAYERS + [OUTPUT_US]]
        ends = clock_reads(us)
        wall = int(ends[-1] - ends[0]) + HOST_US * 1000
        for i in range(n_prefill):
            profile.add_step("prefill", 32, rows, ends, wall, n_past=32 * i)
        for i in range(n_decode):
            profile.add_step("decode", 1, rows, ends, wall, n_past=32 * n_prefill + i)
        return profile

    return make
