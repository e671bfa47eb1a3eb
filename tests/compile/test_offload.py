"""-ngl: what goes to the device, whether it fits, and the figures when it does not."""

from __future__ import annotations

from typing import Any

import pytest
from remote_device import RemoteMemory

import gguflow.engine.ops  # noqa: F401
from gguflow.engine.compile import PlacementRules, Plan, PlanOptions, compile_graph
from gguflow.engine.graph import F32, Graph, Tensor
from gguflow.engine.limits import ALL_LAYERS, AUTO_LAYERS
from gguflow.engine.load.offload import RESERVE, choose_layers, needed

N_LAYER, LAYER_BYTES = 4, 1024 * 1024 * 4


class Fake:
    def __init__(self, name: str, space: str, free: int = 0) -> None:
        self.name, self.space = name, space
        self.memory = RemoteMemory()
        self.memory.free = free

    def supports(self, node: Tensor) -> bool:
        return True


def plans(overrides: tuple[tuple[str, str], ...]) -> list[Plan]:
    g = Graph()
    x = g.input("x", F32, (1, 1024))
    for i in range(N_LAYER):
        x = g.mul_mat(g.weight(f"blk.{i}.w", F32, (1024, 1024)), x, name=f"blk.{i}.mm")
    g.output(g.mul_mat(g.weight("output.weight", F32, (1024, 1024)), x, name="logits"))
    order = (Fake("cuda", "cuda:0"), Fake("cpu", "host"))
    return [compile_graph(g, PlanOptions(PlacementRules(order, overrides)))]


def on_device(overrides: tuple[tuple[str, str], ...]) -> list[str]:
    (p,) = plans(overrides)
    return [n.name for n in p.nodes if p.placement.of[n] == "cuda"]


def device(free: int) -> Any:
    return Fake("cuda", "cuda:0", free)


def test_a_number_takes_the_last_layers() -> None:
    layers, overrides = choose_layers(2, N_LAYER, device(1 << 40), plans)
    assert layers == 2
    assert on_device(overrides) == ["blk.2.mm", "blk.3.mm"]


def test_all_takes_the_head_too() -> None:
    layers, overrides = choose_layers(ALL_LAYERS, N_LAYER, device(1 << 40), plans)
    assert layers == N_LAYER + 1
    assert on_device(overrides) == [*(f"blk.{i}.mm" for i in range(N_LAYER)), "logits"]


@pytest.mark.parametrize("fit", [0, 1, 3, 4, 5])
def test_auto_takes_as_many_as_fit(fit: int) -> None:
    free = RESERVE + fit * LAYER_BYTES + LAYER_BYTES // 2
    layers, overrides = choose_layers(AUTO_LAYERS, N_LAYER, device(free), plans)
    assert layers == fit
    assert needed(plans(overrides), device(free)).total <= free - RESERVE


def test_what_does_not_fit_is_refused_with_the_figures() -> None:
    with pytest.raises(MemoryError, match=r"cuda:0: 8\.\d\d MiB are needed \(weights 8\.00 MiB"):
        choose_layers(2, N_LAYER, device(RESERVE + LAYER_BYTES), plans)


def test_no_more_layers_than_there_are() -> None:
    assert choose_layers(99, N_LAYER, device(1 << 40), plans)[0] == N_LAYER + 1
