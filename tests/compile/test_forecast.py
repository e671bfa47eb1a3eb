"""The bytes that are forecast for a device are those that a generation allocates there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from remote_device import RemoteBackend, RemoteMemory, take_place
from tiny_model import write_tiny

from gguflow.engine.backends.base import DeviceId, Meets, Memory, Program
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.compile import Step, round_up
from gguflow.engine.graph import Tensor
from gguflow.engine.load.offload import RESERVE, needed
from gguflow.engine.model import Model
from gguflow.engine.plan_key import step_key
from gguflow.engine.sampling import GREEDY


class CountingMemory(RemoteMemory):
    """Counts what is allocated in it, and shares scratch memory among its plans."""

    unit = 512
    total = 1 << 41

    def __init__(self) -> None:
        self.allocated = 0
        self.reserved: tuple[int, int] | None = None
        self.scratch = 0

    def count(self, nbytes: int) -> None:
        self.allocated += round_up(nbytes, self.unit)

    def scratch_bytes(self, nodes: Sequence[Tensor]) -> int:
        return max([1000 + 3 * n.nbytes for n in nodes], default=0)

    def reserve(self, nbytes: int, scratch: int) -> None:
        self.reserved = nbytes, scratch
        self.scratch = scratch
        self.count(scratch)


class Counting(RemoteBackend):
    """A device with such memory."""

    id = DeviceId("cuda")
    name = space = "cuda:0"

    def __init__(self) -> None:
        self.memory: CountingMemory = CountingMemory()

    def alloc(self, nbytes: int) -> HostBuffer:
        self.memory.count(nbytes)
        return super().alloc(nbytes)

    def alloc_shared(self, nbytes: int) -> HostBuffer:
        self.memory.count(nbytes)
        return super().alloc_shared(nbytes)

    def load_weight(self, weight: Tensor, raw: np.ndarray, packed: bool) -> HostBuffer:
        self.memory.count(weight.stored_bytes)
        return super().load_weight(weight, raw, packed)

    def lower(
        self,
        steps: Sequence[Step],
        memory: Memory,
        n_threads: int | None = None,
        meets: Meets | None = None,
    ) -> Program:
        nodes = [s for s in steps if isinstance(s, Tensor)]
        assert self.memory.scratch_bytes(nodes) <= self.memory.scratch
        return super().lower(steps, memory, n_threads, meets)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Counting:
    made = Counting()
    take_place(monkeypatch, made)
    return made


@pytest.mark.parametrize("n_gpu_layers", [1, 2, 3])
@pytest.mark.parametrize("n_ubatch", [1, 4, 64])
def test_a_generation_takes_what_was_said(
    device: Counting, tmp_path: Path, n_gpu_layers: int, n_ubatch: int
) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    model = Model.load(path, n_gpu_layers=n_gpu_layers, n_ubatch=n_ubatch)
    told = needed(model.largest_plans(), device)
    assert device.memory.reserved == (told.total, told.scratch)
    # One ubatch, then single tokens: no other plans than the two that are counted.
    ids = [1 + i % 90 for i in range(n_ubatch)]
    found = list(model.new_session().generate(ids, 1 if n_ubatch == 64 else 5, GREEDY))
    assert found
    if n_ubatch == 64:  # no decode plan: its own memory is not there
        single = model.plan(step_key(1, "last", True)).bytes_by_space()["cuda:0"]
        own = single.inputs + single.results + single.copies
        assert device.memory.allocated == told.total - own
    else:
        assert device.memory.allocated == told.total


def test_one_byte_too_many_is_refused_with_the_figures(device: Counting, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    total = needed(Model.load(path, n_gpu_layers=3).largest_plans(), device).total
    device.memory.free = RESERVE + total
    Model.load(path, n_gpu_layers=3)
    device.memory.free -= 1
    with pytest.raises(MemoryError, match=r"cuda:0: .* are needed \(weights .*intermediate"):
        Model.load(path, n_gpu_layers=3)
