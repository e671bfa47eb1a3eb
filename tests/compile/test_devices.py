"""Devices by kind and number, and backends that are a directory each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_device import RemoteBackend
from tiny_model import write_tiny

from gguflow.engine import model as model_module
from gguflow.engine.backends.base import Backend, DeviceId, backend_names, find_backend
from gguflow.engine.backends.null import NullBackend, NullError
from gguflow.engine.compile import PlacementError
from gguflow.engine.graph import F32
from gguflow.engine.limits import EqualBits
from gguflow.engine.load.random import random_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.plan_key import step_key
from gguflow.models.shapes import SHAPES

IDS = [1, 9, 17, 33, 40]


@pytest.mark.parametrize(
    "text, found",
    [("cuda:1", DeviceId("cuda", 1)), ("cuda", DeviceId("cuda", 3)), ("cpu:0", DeviceId("cpu", 0))],
)
def test_a_device_is_kind_and_number(text: str, found: DeviceId) -> None:
    assert DeviceId.parse(text, 3) == found
    assert DeviceId.parse(str(found)) == found


@pytest.mark.parametrize(
    "text", ["", "cuda:", "cuda:-1", "cuda:x", "c d", ":1", "cuda:1:2", "cuda:²"]
)
def test_what_is_no_device(text: str) -> None:
    with pytest.raises(LookupError, match="no backend called"):
        DeviceId.parse(text)


def test_a_backend_is_a_directory() -> None:
    assert backend_names() == ["cpu", "cuda", "null", "numpy", "simulated"]
    for name in ("cpu", "null", "numpy"):
        backend = find_backend(name)
        assert backend.id == DeviceId(name) and backend.name in (name, f"{name}:0")
    assert find_backend("null:4").name == "null:4"
    assert find_backend("cpu:0").name == "cpu"
    with pytest.raises(LookupError, match="no device called 'cpu:1': there is one cpu"):
        find_backend("cpu:1")
    for name in ("tpu", "base", "host"):
        with pytest.raises(LookupError, match=f"no backend called '{name}'"):
            find_backend(name)


class Numbered(RemoteBackend):
    """Several of a kind, each with memory of its own."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.id = DeviceId("remote", index)
        self.name = self.space = str(self.id)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the remote devices that were opened, in turn."""
    opened: list[int] = []

    def find(name: str, options: Any) -> Backend:
        if name != "remote":
            return find_backend(name, options)
        opened.append(options["device"])
        return Numbered(options["device"])

    monkeypatch.setattr(model_module, "find_backend", find)
    return opened


def logits(path: Path, **options: Any) -> np.ndarray:
    model = Model.load(path, k_type=F32, v_type=F32, **options)
    s = model.new_session()
    return np.stack([s.step((t,), "last")[0][0].copy() for t in IDS])


def test_several_devices_of_a_kind_in_one_model(made: list[int], tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", seed=2, gain=2.0)
    overrides = (
        (r"(blk|kv)\.0\..*", "remote:0"), (r"(blk|kv)\.1\..*", "remote:2"), (".*", "remote")
    )  # fmt: skip
    found = logits(path, backends=("numpy",), overrides=overrides, device=1)
    assert made == [0, 2, 1]
    np.testing.assert_allclose(found, logits(path, backends=("numpy",)), rtol=1e-5, atol=1e-5)
    model = Model.load(path, backends=("numpy",), overrides=overrides, device=1)
    assert set(model.backends) == {"numpy", "remote:0", "remote:1", "remote:2"}
    plan = model.plan(step_key(1, "last", False))
    assert [s.backend for s in plan.segments] == ["remote:1", "remote:0", "remote:2", "remote:1"]


def test_devices_are_told_of_equal_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[EqualBits] = []

    def find(name: str, options: Any) -> Backend:
        told.append(options["equal_bits"])
        return find_backend(name, options)  # which takes no notice

    monkeypatch.setattr(model_module, "find_backend", find)
    path = write_tiny(tmp_path / "m.gguf", seed=2)
    found = [logits(path, backends=("numpy", "null:0"), equal_bits=x)
             for x in (False, True, "many")]  # fmt: skip
    assert told == [False, False, "few", "few", "many", "many"]
    assert all(np.array_equal(x, found[0]) for x in found)


def test_the_one_of_its_kind_has_any_name(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    options = Options(overrides=((r"output", "cpu:0"), (".*", "cpu")), device=3)
    model = Model(model_module.open_model(path), options)
    assert set(model.backends) == {"cpu", "numpy"}
    assert {b for _, b in model.options.overrides} == {"cpu"}
    for target in ("cpu:1", "tpu", "cpu:x"):
        with pytest.raises(PlacementError, match=rf"\.\*={target}: no such backend; have cpu, nu"):
            Model(model_module.open_model(path), Options(overrides=((".*", target),)))


# -- the null backend ------------------------------------------------------------------------------


def planned(**options: Any) -> Model:
    return Model(
        random_model("llama3-8b:Q4_0"), Options(n_ctx=4096, backends=("null:0",), **options)
    )


def test_an_8b_model_over_two_null_devices() -> None:
    n = SHAPES["llama3-8b"][0].n_layer
    second = "|".join(str(i) for i in range(n // 2, n))
    upper = rf"^((blk|kv)\.({second})\.|output|sampl|logits).*"
    overrides = ((upper, "null:1"), (".*", "null:0"))
    whole, halves = planned(), planned(overrides=overrides)
    for n_tokens in (1, 512):
        one, two = (m.plan(step_key(n_tokens, "last", True)) for m in (whole, halves))
        assert [s.backend for s in two.segments] == ["null:0", "null:1"]
        (b,), (b0, b1) = (p.bytes_by_space().values() for p in (one, two))
        assert b0.weights + b1.weights == b.weights > 4 << 30
        assert b0.states == b1.states == b.states // 2 == 4096 * 1024 * 2 * 2 * n // 2
        crossing = 4 * 4096 * n_tokens
        # The values of the last layer below, and where tokens, rows and pages are.
        assert crossing <= b1.copies <= crossing + 4 * 4096
    plan, device = halves.plan(step_key(1, "last", True)), halves.backends["null:0"]
    assert device.costs is not None
    seconds = sum(device.costs(node) for node in plan.nodes)
    weights = sum(x.weights for x in plan.bytes_by_space().values())
    read = weights - plan.graph.leaves["token_embd.weight"].nbytes  # one row of which is read
    states = sum(x.states for x in plan.bytes_by_space().values())
    assert read / 1e12 < seconds < 1.1 * (read + states) / 1e12  # at 1,000 GB/s


def test_peaks_and_memory_that_are_given() -> None:
    slow = NullBackend(0, peaks=(10.0, 100.0, 400.0, 200.0), memory=1 << 20)
    node = planned().plan(step_key(1, "none", False)).nodes[-1]
    assert slow.costs(node) == pytest.approx(100 * NullBackend().costs(node), rel=0.01)
    slow.alloc(1 << 19)
    assert slow.memory.room() == (1 << 19, 1 << 20)
    with pytest.raises(MemoryError, match="null:0: cannot allocate 600000 bytes: 524288 are free"):
        slow.alloc(600_000)


def test_nothing_runs_on_it(tmp_path: Path) -> None:
    model = Model.load(write_tiny(tmp_path / "m.gguf"), overrides=((".*", "null"),))
    with pytest.raises(NullError, match="null:0 plans and costs, it runs nothing"):
        model.new_session().step((1,), "last")
