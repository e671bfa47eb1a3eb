"""Measured peaks are plausible, and ops are held against the nearer roof."""

from __future__ import annotations

from gguflow.engine.backends.base import find_backend
from gguflow.engine.profile import Peaks
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


def test_the_compute_roof_is_the_highest_the_types_allow():
    gpu = Peaks(read_gbs=10, f32_gflops=100, int8_gops=400, f16_gflops=1600)
    assert gpu.compute(["f32", "f32"]) == 100
    assert gpu.compute(["f32", "f16", "f32"]) == gpu.compute(["bf16"]) == 1600
    assert gpu.compute(["f32", "q4_K", "f32"]) == 1600
    assert Peaks(f32_gflops=100, f16_gflops=300).compute(["f32", "q4_K"]) == 300
    assert Peaks(f32_gflops=100, int8_gops=400).compute(["f32", "f16"]) == 100
    assert gpu.share(1, 80, ["f32", "f16"]) == 0.1


def test_quantized_types():
    assert all(map(is_quantized, ["q4_0", "q6_K", "iq2_xxs", "tq1_0", "mxfp4", "nvfp4"]))
    assert not any(map(is_quantized, ["f32", "f16", "bf16", "i32", "i8"]))


def test_measured_peaks_are_those_of_a_computer():
    peaks = Peaks(*find_backend("cpu", {"n_threads": 1}).peaks())
    read_gbs, f32_gflops, int8_gops = peaks.read_gbs, peaks.f32_gflops, peaks.int8_gops
    assert read_gbs and f32_gflops and int8_gops
    assert 0.5 < read_gbs < 10_000
    assert 0.5 < f32_gflops < 100_000
    # Every instruction set does at least as many int8 as float32 operations, a busy machine aside.
    assert int8_gops > 0.5 * f32_gflops
    # Some processors have one pipe for it and two for float32.
    assert peaks.bf16_gflops is None or peaks.bf16_gflops > 0.25 * f32_gflops


def test_bf16_has_a_roof_of_its_own():
    cpu = Peaks(f32_gflops=100, int8_gops=400, bf16_gflops=800)
    assert cpu.compute(["f32", "bf16"]) == 800
    assert cpu.compute(["f32", "f16"]) == 100
    assert Peaks(f32_gflops=100, f16_gflops=300).compute(["f32", "bf16"]) == 300


def test_machine_name_has_the_cores():
    assert machine_name().endswith(" cores")
