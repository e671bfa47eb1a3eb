"""Mixtures of experts over a device and the host: the same results, and what goes where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relu_models import nmse
from remote_device import LinkableBackend
from tiny_model import write_tiny

from gguflow.cli.main import main
from gguflow.engine import model as model_module
from gguflow.engine.backends.base import Backend, DeviceId, find_backend
from gguflow.engine.imatrix import Importance, ImportanceMatrix, write_imatrix
from gguflow.engine.limits import ALL_LAYERS, AUTO_LAYERS
from gguflow.engine.load.offload import RESERVE
from gguflow.engine.model import Model
from gguflow.engine.options import OptionError, Options
from gguflow.engine.planning import token_key
from gguflow.engine.resolve import Resolved
from gguflow.engine.runtime.sides import cut
from gguflow.engine.variants.experts.place import hottest
from gguflow.engine.variants.experts.run import HotExperts, with_hot_experts

IDS = [1, 9, 17, 33, 40, 7, 7, 60]
BIASES = ("ffn_gate_exps.bias", "ffn_up_exps.bias", "ffn_down_exps.bias", "ffn_down_exps.scale")
FAMILIES = ("qwen3moe", "gpt-oss", "glm4moe", "gemma4")


class Card(LinkableBackend):
    """A device with memory of its own."""

    id = DeviceId("cuda")
    name = space = "cuda:0"
    free = 64 << 30

    def __init__(self) -> None:
        super().__init__()
        self.memory.free, self.memory.total = self.free, 64 << 30


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> type[Card]:
    def find(name: str, options: dict[str, Any]) -> Backend:
        return Card() if name == "cuda" else find_backend(name, options)

    monkeypatch.setattr(model_module, "find_backend", find)
    monkeypatch.setattr(Card, "free", 64 << 30)
    return Card


def written(folder: Path, arch: str) -> Path:
    path = folder / f"{arch}.gguf"
    return path if path.exists() else write_tiny(path, arch, optional=BIASES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experts")


def on_device(model: Model) -> set[str]:
    plan = model.plan(token_key())
    return {t.name for t, where in plan.placement.of.items() if where == "cuda:0"}


@pytest.mark.parametrize("arch", FAMILIES)
def test_two_parts_are_the_whole(folder: Path, arch: str) -> None:
    model = Model.load(written(folder, arch), n_threads=1)
    whole, setup = model.logits(IDS), model.setup
    rng = np.random.default_rng(0)
    assert model.hp.experts is not None
    n = model.hp.experts.n
    layers = [i for i in range(model.hp.n_layer) if f"blk.{i}.ffn_up_exps.weight" in
              setup.source.weights]  # fmt: skip
    hot = {i: np.sort(rng.choice(n, 1 + i % 3, replace=False)).astype(np.int32) for i in layers}
    parted = replace(setup, source=with_hot_experts(setup.source, hot), rewrites=(HotExperts(hot),))
    other = model._of(Resolved(parted))
    other.load_weights()
    assert nmse(other.logits(IDS), whole) < 1e-6
    names = {n.name for n in other.plan(token_key()).nodes}
    assert {f"blk.{i}.ffn.merge" for i in layers} <= {name.replace(".moe", "") for name in names}


@pytest.mark.parametrize("arch", ["qwen3moe", "gpt-oss"])
def test_experts_stay_on_the_host(folder: Path, card: type[Card], arch: str) -> None:
    path = written(folder, arch)
    whole = Model.load(path, n_threads=1).logits(IDS)
    model = Model.load(path, n_threads=1, n_gpu_layers=ALL_LAYERS, cpu_experts=ALL_LAYERS)
    assert nmse(model.logits(IDS), whole) < 1e-6
    there = on_device(model)
    plan = model.plan(token_key())
    assert not any("_exps" in name for name in there)
    of_experts = [n for n in plan.nodes if (n.op or "").startswith(("mul_mat_id", "moe_sum"))]
    assert len(of_experts) >= 2 * model.hp.n_layer
    assert not there & {n.name for n in of_experts}
    # A layer's input and its experts' shares go over together, their sum comes back.
    assert len(cut(plan, model.backends).meetings) <= 3 * model.hp.n_layer
    by_name = (("_exps", "cpu"),)
    same = Model.load(path, n_threads=1, n_gpu_layers=ALL_LAYERS, overrides=by_name)
    assert on_device(same) == there
    assert {"blk.0.attn_q.weight", "blk.1.ffn_gate_inp.weight", "output.weight"} - there <= {
        "output.weight"
    }
    some = on_device(Model.load(path, n_threads=1, n_gpu_layers=ALL_LAYERS, cpu_experts=1))
    assert "blk.0.ffn_up_exps.weight" not in some and "blk.1.ffn_up_exps.weight" in some


def test_the_most_used_go_to_the_device(
    folder: Path, card: type[Card], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(folder, "qwen3moe")
    whole = Model.load(path, n_threads=1).logits(IDS)
    counts = {0: [9, 0, 5, 0, 0, 1, 0, 7], 1: [0, 8, 0, 0, 6, 0, 0, 0]}
    entries = {
        f"blk.{i}.ffn_down_exps.weight": Importance(np.ones((8, 32)), np.array(c, np.float64))
        for i, c in counts.items()
    }
    use = str(tmp_path / "use.gguf")
    write_imatrix(use, ImportanceMatrix(entries, ("t",), 1, 8))
    asked: dict[str, Any] = {"n_threads": 1, "n_gpu_layers": ALL_LAYERS, "expert_use": use}

    def hot(free: int) -> tuple[dict[int, list[int]], Model]:
        monkeypatch.setattr(Card, "free", free)
        model = Model.load(path, cpu_experts=AUTO_LAYERS, **asked)
        found = [r for r in model.setup.rewrites if isinstance(r, HotExperts)]
        return ({i: ids.tolist() for i, ids in found[0].hot.items()} if found else {}), model

    every, model = hot(64 << 30)
    assert every == {0: [0, 2, 5, 7], 1: [1, 4]}
    assert nmse(model.logits(IDS), whole) < 1e-6
    assert "blk.0.ffn_up_exps.hot" in on_device(model)
    assert "blk.0.ffn_up_exps.weight" not in on_device(model)
    assert "6 of 16 experts, 100 % of what tokens choose" in model.notes[-1]
    meetings = cut(model.plan(token_key()), model.backends).meetings  # host and device side by side
    assert len(meetings) >= 2 * model.hp.n_layer

    plain = Model.load(path, cpu_experts=ALL_LAYERS, **{**asked, "expert_use": ""})
    least = sum(b.total for s, b in plain.plan(token_key()).bytes_by_space().items() if s != "host")
    fewer, model = hot(RESERVE + least + (1 << 20))
    assert set(fewer) <= {0, 1} and sum(map(len, fewer.values())) <= 6
    assert nmse(model.logits(IDS), whole) < 1e-6
    with pytest.raises(MemoryError, match="are needed"):
        hot(RESERVE + 64)


def test_use_is_counted_once_and_kept(
    folder: Path, card: type[Card], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGUFLOW_CACHE_DIR", str(tmp_path))
    path = written(folder, "qwen3moe")
    asked = {"n_threads": 1, "n_gpu_layers": ALL_LAYERS, "cpu_experts": AUTO_LAYERS}
    first, again = (Model.load(path, **asked) for _ in range(2))
    assert "counted on" in first.notes[-1] and "as counted before" in again.notes[-1]
    kept = [[r.hot for r in m.setup.rewrites if isinstance(r, HotExperts)] for m in (first, again)]
    assert all(np.array_equal(kept[0][0][i], kept[1][0][i]) for i in kept[0][0])
    (file,) = (tmp_path / "experts").iterdir()
    file.write_bytes(b"no such file")
    assert "counted on" in Model.load(path, **asked).notes[-1]


def test_the_budget_goes_to_the_most_uses_a_byte() -> None:
    counts = {0: np.array([5, 1, 0]), 1: np.array([9, 8, 0])}
    found = hottest(counts, {0: 10, 1: 20}, 45)
    assert {i: ids.tolist() for i, ids in found.items()} == {0: [0, 1], 1: [0]}
    assert hottest(counts, {0: 10, 1: 20}, 9) == {}


def test_what_cannot_be_obeyed_is_refused(folder: Path, card: type[Card], tmp_path: Path) -> None:
    dense, path = write_tiny(tmp_path / "d.gguf"), written(folder, "qwen3moe")
    with pytest.raises(
        OptionError, match="`cpu_experts` is for mixtures of experts, and this llama"
    ):
        Model.load(dense, cpu_experts=1)
    with pytest.raises(OptionError, match="`cpu_experts=auto` puts .* give `n_gpu_layers`"):
        Model.load(path, cpu_experts=AUTO_LAYERS)
    with pytest.raises(OptionError, match="`expert_use` says which"):
        Model.load(path, expert_use="x.gguf", cpu_experts=1)
    with pytest.raises(OptionError, match=r"`overrides` \.\*=cpu places the experts before"):
        Model.load(path, cpu_experts=1, overrides=((".*", "cpu"),))
    with pytest.raises(OptionError, match="cpu_experts -3"):
        Options(cpu_experts=-3)
    other = str(tmp_path / "use.gguf")
    entries = {"blk.0.ffn_down_exps.weight": Importance(np.ones((4, 32)), np.ones(4))}
    write_imatrix(other, ImportanceMatrix(entries, ("t",), 1, 8))
    with pytest.raises(OptionError, match=r"no counts of the 8 experts of blk\.0"):
        Model.load(path, n_gpu_layers=1, cpu_experts=AUTO_LAYERS, expert_use=other)


def test_flags(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dense = str(write_tiny(tmp_path / "d.gguf"))
    for flags in (["--cpu-moe"], ["-ncmoe", "2"]):
        assert main(["generate", "-m", dense, "-p", "!", "-n", "1", *flags]) == 2
        assert "--n-cpu-moe is for mixtures of experts" in capsys.readouterr().err
    path = str(written(folder, "qwen3moe"))
    assert main(["generate", "-m", path, "-p", "!", "-n", "1", "--n-cpu-moe", "auto"]) == 2
    assert "--n-cpu-moe auto puts the most used" in capsys.readouterr().err
    assert main(["generate", "-m", path, "-p", "!", "-n", "1", "--cpu-moe"]) == 0


def test_the_host_part_is_fused_where_the_device_has_no_kernel(
    folder: Path, card: type[Card]
) -> None:
    path = written(folder, "qwen3moe")
    model = Model.load(path, n_threads=1, n_gpu_layers=ALL_LAYERS, cpu_experts=ALL_LAYERS)
    ops = {n.op for n in model.plan(token_key()).nodes}
    assert "mul_mat_id_glu" in ops
