"""Rows of quantized weights begin where a device wants them, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from remote_device import RemoteBackend, take_place
from tiny_model import write_tiny

from gguflow import Model
from gguflow.engine.backends.base import DeviceId, find_backend
from gguflow.engine.compile import (
    PlacementRules,
    pad_rows,
    padded_bytes,
    padded_strides,
    row_gap,
    with_gaps,
)
from gguflow.engine.graph import F32, I32, Graph, Role, Tensor, dtype_by_name
from gguflow.engine.graph.tensor import contiguous_strides

Q4_0, Q6_K = dtype_by_name("q4_0"), dtype_by_name("q6_K")


class Device(RemoteBackend):
    """One that takes the place of a GPU."""

    id = DeviceId("cuda")
    name = space = "cuda:0"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    take_place(monkeypatch, made)
    return made


def test_strides_are_the_next_multiples() -> None:
    assert padded_strides(Q6_K, (10, 2560), 16) == (2112, 210)
    assert padded_strides(Q4_0, (3, 5, 96), 16) == (5 * 64, 64, 18)
    assert padded_bytes(Q4_0, (3, 5, 96), 16) == 3 * 5 * 64
    for dtype, shape in ((Q4_0, (7, 256)), (F32, (3, 5)), (Q4_0, (96,)), (Q4_0, (0, 96))):
        for unit in (1, 16):
            dense = contiguous_strides(shape, dtype)
            assert padded_strides(dtype, shape, unit) == dense or 96 in shape and len(shape) > 1
    assert padded_strides(Q4_0, (3, 96), 1) == contiguous_strides((3, 96), Q4_0)


def test_gaps_are_zeros_behind_the_rows() -> None:
    weight = Tensor("w", Q4_0, (3, 96), Role.WEIGHT, padded_strides(Q4_0, (3, 96), 16))
    assert (weight.nbytes, weight.stored_bytes, row_gap(weight)) == (162, 192, (54, 10))
    raw = np.arange(162, dtype=np.uint8)
    rows = with_gaps(weight, raw).reshape(3, 64)
    assert np.array_equal(rows[:, :54].reshape(-1), raw) and not rows[:, 54:].any()
    dense = Tensor("w", Q4_0, (3, 96), Role.WEIGHT)
    assert row_gap(dense) is None and with_gaps(dense, raw) is not None
    assert np.shares_memory(with_gaps(dense, raw), raw)


def test_weights_that_views_look_into_stay_dense() -> None:
    g = Graph()
    whole, seen = g.weight("whole", Q4_0, (4, 96)), g.weight("seen", Q4_0, (4, 96))
    x = g.input("x", F32, (1, 96))
    part = g.slice(seen, 0, 0, 2)
    g.output(g.op("mul_mat", whole, x))
    g.output(g.op("mul_mat", part, x))
    rules = PlacementRules((Device(),))
    pad_rows(g, rules)
    assert (whole.strides, seen.strides) == ((64, 18), (54, 18))
    pad_rows(g, rules)
    assert whole.strides == (64, 18)


def test_weights_of_the_host_stay_dense() -> None:
    g = Graph()
    here, there = (g.weight(f"{n}.w", Q4_0, (4, 96)) for n in ("here", "there"))
    ids = g.input("ids", I32, (1,))
    for w in (here, there):
        g.output(g.op("get_rows", w, ids))
    host = find_backend("numpy")
    pad_rows(g, PlacementRules((host, Device()), ((r"^there", "cuda:0"),)))
    assert (here.strides, there.strides) == ((54, 18), (64, 18))


@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "gemma3"])
@pytest.mark.parametrize("n_gpu_layers", [1, 99])
def test_a_model_with_such_rows_says_the_same(
    device: Device, tmp_path: Path, arch: str, n_gpu_layers: int
) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, dtype="q4_0", gain=2.0)
    model = Model.load(path, n_gpu_layers=n_gpu_layers)
    plan = model.plan(model.buckets.largest)
    padded = [t for t in plan.leaves(Role.WEIGHT) if row_gap(t) is not None]
    assert padded and {plan.placement.of[t] for t in padded} == {"cuda:0"}
    ids = [1, 5, 17, 40, 2]
    found = model.logits(ids)
    device.memory.row_unit = 1
    dense = Model.load(path, n_gpu_layers=n_gpu_layers)
    assert not any(map(row_gap, dense.plan(dense.buckets.largest).leaves(Role.WEIGHT)))
    expected = dense.logits(ids)
    assert np.array_equal(found, expected)
