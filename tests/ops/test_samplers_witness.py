"""What llama.cpp's samplers leave of recorded logits, and with which probabilities.

llama_samplers.npz holds logits of the bundled model (float16, 12 places of a prompt), settings, and
what the chain of llama.cpp's `common_sampler_init` left of them (that of llama-cpp-python 0.3.36,
`min_keep` 0); for mirostat also what it chose, since its next cut depends on that.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguflow.models
from gguflow.engine.samplers import Candidates, Chain
from gguflow.engine.sampling import SamplerSettings
from gguflow.engine.serving.host_sampling import breakers_of
from gguflow.models.tokenizer import Tokenizer

BUNDLED = Path(gguflow.models.__path__[0]) / "bundled" / "tales-8m.gguf"
RECORDED = np.load(Path(__file__).with_name("llama_samplers.npz"))
CASES: list[dict[str, Any]] = json.loads(str(RECORDED["cases"]))
FIRST = np.cumsum([0, *(case["steps"] for case in CASES)])
ENDS = np.cumsum(RECORDED["n_left"])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(BUNDLED)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_samplers_leave_what_llama_cpp_leaves(number: int, tokenizer: Tokenizer) -> None:
    case = CASES[number]
    settings = SamplerSettings(**case["settings"])
    logits = RECORDED["logits"].astype(np.float32)
    breakers = breakers_of(tokenizer, tuple(settings.dry_sequence_breakers))
    chain = Chain(settings, logits.shape[1], breakers)
    prompt = RECORDED["prompt"][: case["past"]].tolist()
    for step in range(case["steps"]):
        at = FIRST[number] + step
        span = slice(ENDS[at] - RECORDED["n_left"][at], ENDS[at])
        c = Candidates(logits[case["row"] + step])
        temperature = chain.filter(c, prompt, 0, 0)
        weights = np.exp((c.logits.astype(np.float64) - c.logits.max()) / temperature)
        p = np.zeros(logits.shape[1])
        p[c.ids] = weights / weights.sum()
        expected = np.zeros_like(p)
        expected[RECORDED["ids"][span]] = RECORDED["p"][span]
        assert set(np.flatnonzero(p)) == set(np.flatnonzero(expected))
        np.testing.assert_allclose(p, expected, rtol=1e-4)
        if chain.mirostat is not None:
            chain.mirostat.observe(c, int(RECORDED["chosen"][at]))
