"""docs/equal-bits.md on a GPU: the tests of tests/serving/test_equal_bits.py, with device plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equal_bits
import pytest
from equal_bits import WEIGHTS
from sizes import SANITIZED, fewer

from gguflow.engine.graph import dtype_by_name
from gguflow.engine.limits import EQUAL_MODES, EqualBits
from gguflow.engine.runtime import BoundPlan
from gguflow.engine.serving.speculation import Speculation

pytestmark = pytest.mark.gpu

CUDA = ("cuda", "cpu", "numpy")


def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, type_kv: str, equal: EqualBits
) -> None:
    """Step by step, with logits, and then as the device makes token after token by itself."""
    kv = dtype_by_name(type_kv)
    model = equal_bits.load(tmp_path, weights, backends=CUDA, k_type=kv, v_type=kv,
                            equal_bits=equal)  # fmt: skip
    todo = equal_bits.requests(fewer(6, 60))
    with monkeypatch.context() as m:
        m.setattr(BoundPlan, "token_loop", None)
        m.setattr(BoundPlan, "round_loop", lambda *_: None)
        expected = equal_bits.alone(model, todo)
        assert len({b.digest for b in expected} - {None}) == len(todo)
        for n_seqs in fewer((3,), (1, 3, 8, 32, 128)):
            for guesses in (None, Speculation(lookup=True, adaptive=False)):
                model.speculate(guesses)
                stress = equal_bits.together(model, todo, n_seqs, n_seqs)
                assert equal_bits.check(expected, stress) > len(todo)
    assert equal_bits.check(expected, enumerate(equal_bits.alone(model, todo))) == len(todo)
    for n_seqs in fewer((3,), (1, 8, 32)):
        stress = equal_bits.together(model, todo, n_seqs, n_seqs)
        assert equal_bits.check(expected, stress) > len(todo)


# To be taken off with the last of the changes of kernels that docs/equal-bits.md lists.
@pytest.mark.xfail(
    strict=not SANITIZED,
    raises=AssertionError,
    reason="products change kernels with the number of columns",
)
@pytest.mark.parametrize("type_kv", ["f16", "q8_0"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_requests_bits_are_its_own(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, type_kv: str
) -> None:
    check(tmp_path, monkeypatch, weights, type_kv, equal=False)


@pytest.mark.parametrize("mode", EQUAL_MODES)
@pytest.mark.parametrize("type_kv", ["f16", "q8_0"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_requests_bits_are_its_own_where_that_is_asked_for(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, type_kv: str,
    mode: EqualBits,
) -> None:  # fmt: skip
    check(tmp_path, monkeypatch, weights, type_kv, equal=mode)
