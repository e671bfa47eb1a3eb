"""Measured speeds have the right order and the right errors."""

from __future__ import annotations

import numpy as np
import pytest

import gguflow.engine.ops  # noqa: F401
from gguflow.engine.backends.base import Ticks
from gguflow.engine.backends.numpy import NumpyBackend
from gguflow.engine.graph import dtype_by_name
from gguflow.engine.variants.relu import speeds
from gguflow.engine.variants.relu.speeds import LayerShape, SpeedError, measure_side, measure_sync


class Clocked(NumpyBackend):
    """A processor that takes what it is told to: seconds a layer, and a byte of active rows."""

    def __init__(self, layer_s: float, byte_s: float, neuron: int) -> None:
        super().__init__()
        self.cost = layer_s, byte_s * neuron

    def lower(self, steps, memory, n_threads=None, meets=None):
        program = super().lower(steps, memory, n_threads)
        layer_s, neuron_s = self.cost

        def finish() -> Ticks:
            buffer, offset = memory.locate(steps[-1].srcs[4].owner)
            idx = buffer.host()[offset : offset + steps[-1].srcs[4].nbytes].view(np.float32)
            ns = np.zeros(len(steps) + 1, np.int64)
            ns[-1] = round(1e9 * (layer_s + neuron_s * int((idx > 0).sum())))
            return Ticks(ns, of_host=True)

        program.finish = finish
        return program


def shape(name: str = "q8_0") -> LayerShape:
    t = dtype_by_name(name)
    return LayerShape(64, 500, t, t, t)


def test_bytes_of_a_neuron_are_those_of_its_rows() -> None:
    mixed = LayerShape(64, 10, *(dtype_by_name(t) for t in ("f16", "q8_0", "q4_0")))
    assert (mixed.neuron.gate, mixed.neuron.up, mixed.neuron.down) == (128, 68, 36)


@pytest.mark.parametrize(("layer_s", "rate"), [(1e-4, 1e9), (0.0, 5e6), (2e-6, 1e11)])
def test_the_line_is_found_again(layer_s: float, rate: float) -> None:
    s = shape()
    side = measure_side(Clocked(layer_s, 1 / rate, s.neuron.total), s)
    assert side.bytes_per_s == pytest.approx(rate, rel=0.05)
    assert side.layer_s == pytest.approx(layer_s, rel=0.05, abs=2e-9)


def test_a_time_that_does_not_grow_is_the_layers_own() -> None:
    s = shape()
    side = measure_side(Clocked(1e-3, 0.0, s.neuron.total), s)
    assert side.layer_s == 0 and side.bytes_per_s == pytest.approx(100 * s.neuron.total / 1e-3)


def test_real_kernels_give_real_figures() -> None:
    side = measure_side(NumpyBackend(), shape("f16"))
    assert 1e4 < side.bytes_per_s < 1e13 and 0 <= side.layer_s < 1


def test_meeting_costs_nothing_within_one_memory(monkeypatch) -> None:
    monkeypatch.setattr(speeds, "ROUNDS", 3)
    assert 0 <= measure_sync(NumpyBackend(), NumpyBackend(), 64) < 0.05


def test_a_backend_without_the_kernel_is_named(monkeypatch) -> None:
    monkeypatch.setattr(NumpyBackend, "supports", lambda self, node: False)
    with pytest.raises(SpeedError, match="numpy has no kernel for sparse layers of q8_0"):
        measure_side(NumpyBackend(), shape())
