"""What runs is decided by a pure function, and variants plug into it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relu_models import IDS, N_FF, run, write
from remote_device import LinkableBackend
from test_relullama_split import SmallDevice, write_random_split
from tiny_model import write_tiny

from gguflow.engine.backends.base import find_backend
from gguflow.engine.compile import recorded_before, replace_values
from gguflow.engine.graph import Graph
from gguflow.engine.limits import AUTO_LAYERS
from gguflow.engine.load import ModelSource, open_model
from gguflow.engine.model import Model
from gguflow.engine.options import OptionError, Options
from gguflow.engine.planning import Planner, Setup
from gguflow.engine.resolve import prepare, resolve, resolve_again
from gguflow.engine.variants.base import Decision, Kind, Tools, kinds
from gguflow.engine.variants.relu.identity import model_hash
from gguflow.engine.variants.relu.run import sparse_run
from gguflow.models.base import ModelError


class Roomy(SmallDevice):
    """A device that nothing runs on here: plans are enough to decide."""

    def load_weight(self, *args: Any) -> Any:
        raise AssertionError("resolving loads nothing")

    alloc = lower = load_weight


def planner(device: LinkableBackend) -> Planner:
    return Planner({device.name: device, "cpu": find_backend("cpu", {"n_threads": 1})})


def no_trial(setup: Setup, ids: Any) -> Any:
    raise AssertionError("nothing is to be measured")


def placed(path: Path, device: LinkableBackend, **changes: Any) -> Any:
    prepared = replace(prepare(open_model(path), Options(**changes)), device=device.name)
    return resolve(prepared, planner(device), no_trial)


def test_the_same_is_decided_twice_and_nothing_is_changed(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    split = tmp_path / "s.gpuidx"
    write_random_split(split, (40, N_FF), model_hash(open_model(path)))
    for changes in ({"n_gpu_layers": 2}, {"n_gpu_layers": AUTO_LAYERS}, {"split": str(split)}):
        source, options = open_model(path), Options(sparse="exact", **changes)
        weights, notes = dict(source.weights), source.notes
        found = []
        for _ in range(2):
            device = Roomy()
            prepared = replace(prepare(source, options), device=device.name)
            found.append(resolve(prepared, planner(device), no_trial))
        assert (source.weights, source.notes) == (weights, notes)
        assert options == Options(sparse="exact", **changes)
        one, two = ((r.setup.options, r.n_gpu_layers, r.notes, list(r.setup.source.weights))
                    for r in found)  # fmt: skip
        assert one == two and one[0].overrides != options.overrides


def test_auto_takes_what_fits(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    device = Roomy()
    assert placed(path, device, n_gpu_layers=AUTO_LAYERS).n_gpu_layers == 3
    device.memory.free = 1
    none = placed(path, device, n_gpu_layers=AUTO_LAYERS)
    assert none.n_gpu_layers == 0 and none.notes[-1] == "0 of 3 layers on cuda:0"
    with pytest.raises(MemoryError, match="lower `n_gpu_layers` or `n_ctx`"):
        placed(path, device, n_gpu_layers=1)


def test_what_is_placed_stays_when_options_change(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    file = tmp_path / "s.gpuidx"
    split = write_random_split(file, (40, 8), model_hash(open_model(path)))
    was = placed(path, Roomy(), split=str(file), n_ubatch=64)
    now = resolve_again(was, {"sparse": "exact", "n_ctx": 32})
    before, after = sparse_run(was.setup), sparse_run(now.setup)
    assert before is not None and after is not None
    assert (before.mode, after.mode) == ("predict", "exact")
    assert before.split == after.split == split
    assert now.setup.options.overrides == was.setup.options.overrides
    assert (now.setup.options.n_ctx, now.setup.options.n_ubatch) == (32, 32)
    assert resolve_again(now, {"n_ubatch": 16}).setup.source is now.setup.source


def test_a_threshold_asked_for_is_taken_back(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", keys={".sparse_threshold": 1.5})
    model = Model.load(path, sparse="predict", n_threads=1)
    other = model.with_options(sparse_threshold=float("-inf"))
    assert not np.array_equal(other.logits(IDS), model.logits(IDS))
    again = other.with_options(sparse_threshold=None)
    assert np.array_equal(again.logits(IDS), run(path))


# -- variants ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scaled:
    """Logits times two."""

    def rewrite(self, g: Graph) -> None:
        logits = next(n for n in g.nodes if n.name == "logits")
        with recorded_before(g, logits):
            half = g.mul_mat(*logits.live_srcs(), name="half")
            twice = g.scale(half, s=2.0, name="twice")
        replace_values(g, {logits: twice})


def is_llama(source: ModelSource, options: Options) -> bool:
    return source.arch.name == "llama"


def refuse(source: ModelSource, options: Options) -> None:
    if options.split:
        raise ModelError("`split` is for toys")


class Toy:
    """A variant of llama models; `split` is its option."""

    def prepare(self, setup: Setup) -> Setup:
        return replace(setup, rewrites=(*setup.rewrites, Scaled()))

    def place(self, original: Setup, setup: Setup, tools: Tools) -> Decision:
        assert original.rewrites == () and tools.host is not None and tools.device is None
        return Decision(setup, ("a toy",))

    def again(self, setup: Setup, changed: frozenset[str]) -> Setup:
        return setup


def test_a_variant_plugs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    plain = Model.load(path, n_threads=1).logits(IDS)
    toys = (Kind("toy", is_llama, Toy, refuse),)
    monkeypatch.setattr("gguflow.engine.resolve.kinds", lambda: toys)
    model = Model.load(path, n_threads=1)
    assert np.array_equal(model.logits(IDS), 2 * plain) and model.notes == ("a toy",)
    again = model.with_options(n_ubatch=3)
    assert np.allclose(again.logits(IDS), 2 * plain, rtol=1e-5) and again.notes == ("a toy",)
    with pytest.raises(ModelError, match="`split` is for toys"):
        Model.load(write(tmp_path / "r.gguf"), split="s")


def test_variants_are_found_by_being_there() -> None:
    assert [kind.name for kind in kinds()] == ["experts", "lora", "parallel", "relu"]


def test_learned_positions_end_the_context(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch="gpt2")
    most = open_model(path).arch.hp.n_ctx_train
    model = Model.load(path, Options(n_ctx=most, n_threads=1))
    with pytest.raises(OptionError, match=f"`n_ctx` {most + 1}: gpt2 has learned positions"):
        prepare(open_model(path), Options(n_ctx=most + 1))
    with pytest.raises(OptionError, match="learned positions"):
        model.with_options(n_ctx=most + 1)
