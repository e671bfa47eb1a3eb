"""The harness notices what it is there to notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from harness import build, in_place_sources, nmse, run_on

from gguflow.engine.backends.base import Live, Meets, Memory, Program
from gguflow.engine.backends.numpy import NumpyBackend
from gguflow.engine.compile import Step
from gguflow.engine.graph import Tensor, op_spec


def test_nmse() -> None:
    one = np.ones(4, np.float32)
    assert nmse(one, one) == 0
    assert nmse(one * 1.5, one) == 0.25
    assert nmse(one, 2 * one) == 0.25
    assert nmse(one, 0 * one) == np.inf and nmse(0 * one, 0 * one) == 0
    odd = np.float32([1, np.nan, np.inf, -np.inf])
    assert nmse(odd, odd) == 0
    assert nmse(one, odd) == nmse(odd, one) == nmse(-odd, odd) == np.inf
    assert nmse(one, one[:3]) == np.inf


class Vandal(NumpyBackend):
    """Runs the reference, then changes one byte relative to a tensor's place."""

    def __init__(self, victim: Callable[[Tensor], Tensor], at: Callable[[Tensor], int]) -> None:
        self.victim, self.at = victim, at

    def lower(
        self,
        steps: Sequence[Step],
        memory: Memory,
        n_threads: int | None = None,
        meets: Meets | None = None,
    ) -> Program:
        program = super().lower(steps, memory, n_threads)
        node = steps[0]
        assert isinstance(node, Tensor)
        owner = self.victim(node).owner
        buffer, offset = memory.locate(owner)
        host = buffer.host()
        assert host is not None
        start = program.start

        def spoil(timed: bool = False, live: Live | None = None) -> None:
            start(timed, live)
            host[offset + self.at(owner)] ^= 1

        program.start = spoil  # type: ignore[method-assign]
        return program


@pytest.mark.parametrize(
    "at, message",
    [(lambda t: -1, "written before add"), (lambda t: t.nbytes, "written past add")],
)
def test_a_write_outside_the_result_is_seen(at: Callable[[Tensor], int], message: str) -> None:
    built = build(op_spec("add"), 0)
    with pytest.raises(AssertionError, match=message):
        run_on(Vandal(lambda node: node, at), built)


def test_a_write_into_an_operand_is_seen() -> None:
    built = build(op_spec("add"), 0)
    with pytest.raises(AssertionError, match="src1: byte 5 was overwritten"):
        run_on(Vandal(lambda node: node.live_srcs()[1], lambda t: 5), built)


def test_a_write_into_another_row_of_a_state_is_seen() -> None:
    built = build(op_spec("set_rows"), 0)  # rows 5, 0 and 2 of seven
    row = built.node.nbytes // 7
    assert nmse(run_on(NumpyBackend(), built), built.expected) == 0
    with pytest.raises(AssertionError, match="src0: byte .* was overwritten"):
        run_on(Vandal(lambda node: node, lambda t: row), built)
    run_on(Vandal(lambda node: node, lambda t: 0), built)  # its own row: for nmse to judge


def test_a_wrong_value_is_seen() -> None:
    built = build(op_spec("add"), 0)
    got = run_on(Vandal(lambda node: node, lambda t: 3), built)  # an exponent's byte
    assert nmse(got, built.expected) > built.tolerance


def test_padding_shows_in_the_result_when_it_is_read() -> None:
    spec = op_spec("sum")
    views = [i for i, c in enumerate(spec.cases()) if "view" in c.note]
    for i in views:
        built = build(spec, i)
        leaf = built.feeds["src0"].view(np.float32)
        assert np.isnan(leaf).any() and np.isfinite(built.expected).all()


def test_in_place() -> None:
    for name in ("add", "silu", "swiglu", "rms_norm", "soft_max", "rope", "scale", "clamp"):
        spec = op_spec(name)
        built = next(b for b in (build(spec, i) for i in range(99)) if in_place_sources(b.node))
        for source in in_place_sources(built.node):
            got = run_on(NumpyBackend(), built, in_place=source)
            assert nmse(got, built.expected) == 0
