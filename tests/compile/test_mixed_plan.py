"""Plans over two memory spaces: copies, shared outputs, states that stay where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_device import RemoteBackend
from tiny_model import write_tiny

from gguflow.engine import model as model_module
from gguflow.engine.backends.base import Backend, find_backend
from gguflow.engine.backends.numpy import NumpyBackend
from gguflow.engine.compile import PlacementRules, layer_overrides
from gguflow.engine.graph import F32, Role
from gguflow.engine.model import Model
from gguflow.engine.plan_key import step_key

IDS = [1, 9, 17, 33, 40, 7, 7, 60]


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str, options: Any = None) -> Backend:
        return RemoteBackend() if name == "remote" else find_backend(name, options)

    monkeypatch.setattr(model_module, "find_backend", find)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "m.gguf", seed=2, gain=2.0)


def logits(path: Path, **options: Any) -> np.ndarray:
    return Model.load(path, k_type=F32, v_type=F32, **options).new_session().logits(IDS)


@pytest.mark.parametrize("n_layers", [0, 1, 2, 3, 99])
@pytest.mark.parametrize("n_ubatch", [1, 3, 8])
def test_layers_on_two_devices(remote: None, path: Path, n_layers: int, n_ubatch: int) -> None:
    expected = logits(path, backends=("numpy",))
    overrides = layer_overrides(2, n_layers, "remote", "numpy")
    found = logits(
        path, backends=("remote", "numpy"), overrides=overrides, n_ubatch=n_ubatch
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_generated_text_is_the_same(remote: None, path: Path) -> None:
    def text(**options: Any) -> list[int]:
        model = Model.load(path, k_type=F32, v_type=F32, **options)
        from gguflow.engine.sampling import GREEDY

        return list(model.new_session().generate(IDS, 12, GREEDY))

    overrides = layer_overrides(2, 1, "remote", "numpy")
    found = text(backends=("remote", "numpy"), overrides=overrides)
    assert found == text(backends=("numpy",))


def test_a_weight_read_elsewhere_is_copied_once(remote: None, path: Path) -> None:
    """The embedding table stays on one device and is looked up on the other."""
    overrides = (("token_embd", "numpy"), (r"embd", "remote"), (".*", "remote"))
    found = logits(path, backends=("remote", "numpy"), overrides=overrides)
    np.testing.assert_allclose(found, logits(path, backends=("numpy",)), rtol=1e-5, atol=1e-5)
    model = Model.load(path, backends=("remote", "numpy"), overrides=overrides)
    bound = model.new_session().bound_plan(1, "last", False)
    copied = [c.owner.name for s in bound.plan.segments for c in s.copies]
    assert "token_embd.weight" in copied
    assert [c.owner.name for c in bound.plan.brought if c.owner.role is Role.WEIGHT] == [
        "token_embd.weight"
    ]
    assert len(bound.brought) == len(bound.plan.brought) - 1


@pytest.mark.parametrize("fuse, name", [(False, "kv_k"), (True, "q_rope")])
def test_writing_a_state_from_another_space_is_an_error(
    remote: None, path: Path, fuse: bool, name: str
) -> None:
    overrides = ((r"kv\.0\.k", "numpy"), (rf"blk\.0\.attn\.{name}", "remote"))
    model = Model.load(path, backends=("remote", "numpy"), overrides=overrides, fuse=fuse)
    with pytest.raises(
        ValueError, match=rf"blk\.0\.attn\.{name} runs on remote but writes kv\.0\.k"
    ):
        model.new_session().bound_plan(1, "last", False)


# -- which layers go where ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "n_layers, on_device",
    [
        (0, []),
        (1, ["blk.1.ffn_up.weight"]),
        (2, ["blk.0.ffn_up.weight", "blk.1.ffn_up.weight"]),
        (3, ["blk.0.ffn_up.weight", "blk.1.ffn_up.weight", "output.weight", "token_embd.weight"]),
    ],
)
def test_layer_overrides_take_the_last_layers_first(
    remote: None, path: Path, n_layers: int, on_device: list[str]
) -> None:
    overrides = layer_overrides(2, n_layers, "remote", "numpy")
    model = Model.load(path, backends=("remote", "numpy"), overrides=overrides)
    placed = model.plan(step_key(1, "last", False)).placement.of
    wanted = (".ffn_up.weight", "output.weight", "token_embd.weight")
    found = [t.name for t, b in placed.items() if b == "remote" and t.name.endswith(wanted)]
    found = [n for n in found if "attn" not in n]
    assert sorted(found) == on_device


def test_layer_overrides_do_not_confuse_1_and_10() -> None:
    overrides = layer_overrides(11, 1, "remote", "numpy")
    rules = PlacementRules((RemoteBackend(), NumpyBackend()), overrides)
    assert rules.overrides[0] == (r"^(?:blk|kv|ssm)\.(?:10)\..*", "remote")
