"""Weights in their compact form beside themselves: where memory is left, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_device import RemoteBackend, RemoteMemory, take_place
from tiny_model import write_tiny

from gguflow.engine import model as model_module
from gguflow.engine.backends.base import Buffer, DeviceId
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.compile import Plan
from gguflow.engine.graph import DType, Tensor
from gguflow.engine.limits import EqualBits
from gguflow.engine.load.compact import SHARE
from gguflow.engine.load.offload import RESERVE, needed
from gguflow.engine.model import Model
from gguflow.engine.options import OptionError, Options, draft_options
from gguflow.engine.plan_key import PlanKey
from gguflow.engine.sampling import GREEDY


class Halves:
    """A form of half the bytes, of matrices that something multiplies by; too_large: of what there
    is none."""

    def __init__(self) -> None:
        self.made: dict[int, str] = {}
        self.too_large, self.is_taken = "", False
        self.rows = 1, 1 << 20  # of products that read it
        self.several = True

    def several_rows(self, t: DType) -> bool:
        return self.several

    def bytes_of(self, weight: Tensor, users: Sequence[Tensor]) -> int:
        least, most = self.rows
        multiplied = any("mul_mat" in (n.op or "") and least <= n.shape[0] <= most for n in users)
        return weight.nbytes // 2 if multiplied and len(weight.shape) == 2 else 0

    def make(self, weights: Sequence[tuple[Tensor, Sequence[Tensor], Buffer]]) -> int:
        if self.is_taken:
            raise MemoryError("cuda:0: cannot allocate")
        some = [w for w in weights if w[0].name != self.too_large]
        self.made |= {id(buffer): t.name for t, _, buffer in some}
        return sum(self.bytes_of(t, of) for t, of, _ in some)


class Device(RemoteBackend):
    id = DeviceId("cuda")
    name = space = "cuda:0"

    def __init__(self) -> None:
        super().__init__()
        self.memory: RemoteMemory = RemoteMemory()
        self.compactor: Halves = Halves()
        self.n_loaded = 0
        self.bits: list[EqualBits] = []

    def with_bits(self, equal_bits: EqualBits) -> Device:
        self.bits.append(equal_bits)
        return self

    def load_weight(self, weight: Tensor, raw: np.ndarray, packed: bool) -> HostBuffer:
        self.n_loaded += 1
        return super().load_weight(weight, raw, packed)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    take_place(monkeypatch, made)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "m.gguf")


def load(path: Path, **options: Any) -> Model:
    return Model.load(path, n_gpu_layers=3, **options)


def test_all_that_are_multiplied_by(device: Device, path: Path) -> None:
    model = load(path)
    names = set(device.compactor.made.values())
    assert {"blk.0.ffn_up.weight", "blk.1.attn_output.weight", "output.weight"} <= names
    assert "token_embd.weight" not in names and not any("norm" in n for n in names)
    assert sum(model.compact_bytes().values()) > 0
    assert any(line.startswith("cuda:0: ") and "a second form" in line for line in model.forecast())
    assert list(model.new_session().generate([1, 2, 3], 4, GREEDY))


def test_a_forecast_says_so_before(device: Device, path: Path) -> None:
    loaded = load(path).compact_bytes()
    model = Model(model_module.open_model(path), Options(n_gpu_layers=3))
    assert model.compact_bytes() == loaded != {}


def test_none_of_what_stays_on_the_host(device: Device, path: Path) -> None:
    Model.load(path, n_gpu_layers=1)
    names = device.compactor.made.values()
    assert names and all(n.startswith("blk.1.") for n in names)


@pytest.mark.parametrize("more", [0, -1])
def test_only_a_small_part_of_what_is_left_is_taken(device: Device, path: Path, more: int) -> None:
    model = load(path)
    b = needed(model.largest_plans(), device)
    (n,) = model.compact_bytes().values()
    device.compactor.made.clear()
    device.memory.free = RESERVE + b.total + SHARE * n + more
    assert bool(load(path).weights.compact_bytes) == (more == 0)
    if more:
        on = load(path, compact_weights="on")
        assert on.weights.compact_bytes == {"cuda:0": n}


def test_what_several_rows_are_read_from(device: Device, path: Path) -> None:
    """Where a run will have several, of sequences or of a draft's first steps."""
    device.compactor.rows = 2, 2
    assert not load(path).compact_bytes()
    model = load(path, n_seqs=2)
    assert model.compact_bytes() and device.compactor.made
    model = load(path)
    assert not model.compact_bytes()
    assert model.load_draft(path).compact_bytes()
    assert device.bits == [False]
    model.load_draft(path, equal_bits="many")
    assert device.bits[1:] == ["many"]
    for rows, n_seqs in (((3, 8), 5), ((9, 16), 20), ((17, 40), 32)):
        device.compactor.rows = rows
        assert not load(path, n_seqs=2).compact_bytes()
        assert load(path, n_seqs=n_seqs).compact_bytes()


def test_plans_of_several_rows_are_made_where_something_may_be_read_by_them(
    device: Device, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, plan = list[PlanKey](), Model.plan

    def noted(model: Model, key: PlanKey) -> Plan:
        made.append(key)
        return plan(model, key)

    monkeypatch.setattr(Model, "plan", noted)
    for several, rows in ((True, {2, 5}), (False, set[int]())):
        device.compactor.several, device.compactor.rows = several, (2, 2)
        made.clear()
        assert bool(load(path, n_seqs=5).compact_bytes()) == several
        assert {key.n_single for key in made} - {1} == rows


def test_a_draft_leaves_what_the_model_is_still_to_take(device: Device, path: Path) -> None:
    model = load(path, n_ctx=64)
    ((_, n),) = model.load_draft(path).compact_bytes().items()
    draft = needed(model.largest_plans(), device)
    others = draft.total - draft.weights
    assert model.beside_weights() == {"cuda:0": others}
    for more in (0, -1):
        device.memory.free = RESERVE + draft.total + others + SHARE * n + more
        assert bool(model.load_draft(path).weights.compact_bytes) == (more == 0)


def test_what_is_asked_for_and_has_no_room(device: Device, path: Path) -> None:
    model = load(path)
    b = needed(model.largest_plans(), device)
    (n,) = model.compact_bytes().values()
    device.compactor.made.clear()
    device.memory.free, device.n_loaded = RESERVE + b.total + n // 2, 0
    with pytest.raises(MemoryError, match=r"^cuda:0: .* for compact weights, but only .* left"):
        load(path, compact_weights="on")
    assert not device.compactor.made and device.n_loaded == 0


def test_off(device: Device, path: Path) -> None:
    model = load(path, compact_weights="off")
    assert not device.compactor.made and not model.compact_bytes()
    assert not any("compact" in line for line in model.forecast())


def test_values_that_it_cannot_hold_are_told(device: Device, path: Path) -> None:
    device.compactor.too_large = "blk.0.ffn_up.weight"
    model = load(path)
    assert "blk.0.ffn_up.weight" not in device.compactor.made.values()
    assert model.weights.notes == ("cuda:0: weights of about 2 and more have no compact form",)


def test_memory_that_is_taken_meanwhile(device: Device, path: Path) -> None:
    device.compactor.is_taken = True
    model = load(path)
    assert not model.compact_bytes()
    assert model.weights.notes == ("cuda:0: memory for compact weights was taken meanwhile",)
    assert list(model.new_session().generate([1, 2, 3], 4, GREEDY))
    with pytest.raises(MemoryError, match="cuda:0: cannot allocate"):
        load(path, compact_weights="on")


def test_the_same_weights_are_not_made_again(device: Device, path: Path) -> None:
    model = load(path)
    made = dict(device.compactor.made)
    assert model.with_options(n_ctx=32).weights is model.weights
    assert device.compactor.made == made
    device.compactor.is_taken = True
    model.load_weights()  # once more, which asks for no memory
    assert not model.weights.notes
    with pytest.raises(OptionError, match="`compact_weights` is settled when a model is loaded"):
        model.with_options(compact_weights="off")


def test_where_there_is_no_device(path: Path) -> None:
    assert not Model.load(path).compact_bytes()
    with pytest.raises(OptionError, match="^`compact_weights`: no GPU has weights that are read"):
        Model.load(path, compact_weights="on")


def test_options() -> None:
    with pytest.raises(OptionError, match="compact_weights 'yes': expected one of auto, on, off"):
        Options(compact_weights="yes")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="`vram_budget` counts every byte"):
        Options(compact_weights="on", vram_budget=1 << 30)
    for given, of_draft in (("auto", "auto"), ("on", "auto"), ("off", "off")):
        options = draft_options(Options(compact_weights=given), 0, {})  # type: ignore[arg-type]
        assert options.compact_weights == of_draft
