"""--devices auto, on a machine that says that it has several GPUs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import gguflow.engine.scaling.plans  # noqa: F401  (so that it has the real find_backend)
from gguflow.cli import main
from gguflow.cli.auto_devices import with_devices
from gguflow.engine.backends import base
from gguflow.engine.load.random import random_model
from gguflow.engine.options import Options


@pytest.fixture(autouse=True)
def four_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(room=lambda: (5 << 30, 6 << 30))
    cards = SimpleNamespace(n_alike=4, memory=memory)
    monkeypatch.setattr(base, "find_backend", lambda name, options=None: cards)


def test_the_fewest_cards_with_room(capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(n_ctx=512, devices=("auto",))
    found = with_devices(random_model("llama3-8b:Q4_0"), options, print)
    assert found.devices == ("cuda:0",) and found.split_mode == "none"
    found = with_devices(random_model("llama3-8b:F16"), options, print)
    assert found.devices == ("cuda:0", "cuda:1", "cuda:2") and found.split_mode == "layer"
    assert "--devices auto: 3 of 4 cards: the fewest with room" in capsys.readouterr().out


def test_parts_of_layers_on_as_many_as_gain_something() -> None:
    options = Options(n_ctx=512, devices=("auto",), split_mode="tensor")
    found = with_devices(random_model("llama3-8b:Q4_0"), options, print)
    assert found.devices == tuple(f"cuda:{k}" for k in range(4)) and found.split_mode == "tensor"
    found = with_devices(random_model("smollm2-135m:Q4_0"), options, print)
    assert found.devices == ("cuda:0",) and found.split_mode == "none"


def test_named_ones_stay() -> None:
    options = Options(devices=("cuda:0", "cuda:1"))
    assert with_devices(random_model("smollm2-135m:Q4_0"), options, print) is options


def test_shares_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code = main.main(["bench", "--random", "smollm2-135m:Q4_0", "--devices", "auto", "-ts", "1"])
    assert code == 2 and "-ts/--tensor-split" in capsys.readouterr().err
