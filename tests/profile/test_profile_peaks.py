"""Measured peaks are plausible, and a missing one never breaks a profile."""

from __future__ import annotations

import sys

import pytest

from gguflow.engine.profile import Peaks, measure_peaks
from gguflow.engine.profile.machine import machine_name
from gguflow.engine.profile.peaks import is_quantized


def test_share_is_the_nearer_roof():
    peaks = Peaks(read_gbs=10, f32_gflops=100, int8_gops=400)
    assert peaks.share(5, 20, ["f32", "f32"]) == 0.5
    assert peaks.share(1, 80, ["f32", "f16"]) == 0.8
    assert peaks.share(1, 80, ["f32", "q4_0", "f32"]) == 0.2
    assert Peaks(read_gbs=10, f32_gflops=100).share(1, 80, ["q8_0"]) == 0.8
    assert Peaks(f32_gflops=100).share(5, 20, ["f32"]) == 0.2
    assert Peaks().share(5, 20, ["f32"]) is None


def test_quantized_types():
    assert all(map(is_quantized, ["q4_0", "q6_K", "iq2_xxs", "tq1_0", "mxfp4", "nvfp4"]))
    assert not any(map(is_quantized, ["f32", "f16", "bf16", "i32", "i8"]))


@pytest.mark.slow
def test_measured_peaks_are_those_of_a_computer():
    peaks = measure_peaks(1)
    assert peaks.read_gbs is not None and 0.5 < peaks.read_gbs < 10_000
    assert peaks.f32_gflops is not None and 0.5 < peaks.f32_gflops < 100_000
    assert measure_peaks(1) is peaks


def test_without_a_process_to_measure_in(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert measure_peaks.__wrapped__(3) == Peaks()


def test_threads_must_be_positive():
    with pytest.raises(ValueError, match="n_threads is 0"):
        measure_peaks(0)


def test_machine_name_has_the_cores():
    assert machine_name().endswith(" cores")
