"""ReLU models divided between a device and the host: the same results, and what goes where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from relu_models import IDS, N_EMBD, N_FF, N_LAYER, nmse, run, write
from remote_device import LinkableBackend
from tiny_model import USUAL

from gguflow.engine import model as model_module
from gguflow.engine.backends.base import Backend, DeviceId, find_backend
from gguflow.engine.gguf import GgufError, GgufFile
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.plan_key import step_key
from gguflow.engine.variants.relu import device as placing
from gguflow.engine.variants.relu.identity import model_hash
from gguflow.engine.variants.relu.run import sparse_run
from gguflow.engine.variants.relu.split import NeuronSplit, write_split


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("relu") / "m.gguf")


class SmallDevice(LinkableBackend):
    """A device with memory of its own, of which some is in use."""

    id = DeviceId("cuda")
    name = space = "cuda:0"
    free = (64 << 30) - (100 << 20)

    def __init__(self) -> None:
        super().__init__()
        self.memory.free, self.memory.total = self.free, 64 << 30


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> type[SmallDevice]:
    def find(name: str, options: dict[str, Any]) -> Backend:
        return SmallDevice() if name == "cuda" else find_backend(name, options)

    monkeypatch.setattr(model_module, "find_backend", find)
    return SmallDevice


def some(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.sort(rng.choice(N_FF, n, replace=False)).astype(np.int32)


def write_random_split(
    path: Path, n_gpu: tuple[int, ...], owner: str, seed: int = 0
) -> NeuronSplit:
    rng = np.random.default_rng(seed)
    split = NeuronSplit(N_FF, tuple(some(rng, n) for n in n_gpu))
    write_split(path, split, owner, 1 << 30)
    return split


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    n_gpu=st.tuples(*[st.sampled_from([0, 1, 31, 64, 95, N_FF])] * N_LAYER),
    mode=st.sampled_from(["predict", "exact"]),
    host=st.sampled_from([("cpu", "numpy"), ("numpy",)]),
    fuse=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_split_is_the_whole(
    path: Path, tmp_path_factory: pytest.TempPathFactory, device: type[SmallDevice],
    n_gpu: tuple[int, ...], mode: Any, host: tuple[str, ...], fuse: bool, seed: int,
) -> None:  # fmt: skip
    file = tmp_path_factory.mktemp("split") / "s.gpuidx"
    write_random_split(file, n_gpu, model_hash(open_model(path)), seed)
    whole = run(path, sparse=mode, backends=host, fuse=fuse)
    model = Model.load(path, n_threads=1, sparse=mode, backends=host, fuse=fuse, split=str(file))
    assert nmse(model.logits(IDS), whole) < 1e-6
    s = model.new_session()
    steps = np.array([s.step([t], "last")[0][0].copy() for t in IDS])
    assert nmse(steps, whole) < 1e-6


def test_where_everything_is(path: Path, tmp_path: Path, device: type[SmallDevice]) -> None:
    file = tmp_path / "s.gpuidx"
    split = write_random_split(file, (40, N_FF), model_hash(open_model(path)))
    model = Model.load(path, n_threads=1, split=str(file))
    plan = model.plan(step_key(1, "last", True))
    where = {n: plan.placement.of[t] for n, t in plan.graph.leaves.items()}
    on_host = {n for n, b in where.items() if b == "cpu"}
    assert on_host == {"tokens", "token_embd.weight", "blk.0.gpu_idx", *(
        f"blk.0.ffn_{p}.weight" for p in ("gate", "up", "down_t"))}  # fmt: skip
    # Once to the host and once back in the layer that is divided, and the token's embedding.
    assert [s.backend for s in plan.segments] == ["cpu", "cuda:0", "cpu", "cuda:0"]
    assert model.new_session().bound_plan(1, "last", True).unlinked is None  # side by side
    nodes = {n.name: plan.placement.of[n] for n in plan.nodes}
    assert {n for n, b in nodes.items() if b == "cpu"} == {"embd", "blk.0.ffn.cold"}
    parts = "norm", "predict_fc1", "predict_hidden", "predict", "hot", "cold", "merge", "residual"
    assert [n for n in nodes if n.startswith("blk.0.ffn.")] == [f"blk.0.ffn.{p}" for p in parts]
    hot = plan.graph.leaves["blk.0.ffn_up.hot"]
    assert hot.shape == (40, N_EMBD)
    stored = np.asarray(model.weights.buffers[hot.name].read(0, hot.nbytes)).view(np.float32)
    with GgufFile.open(path) as f:
        rows = f.array("blk.0.ffn_up.weight")[split.buckets[0]]
    assert np.array_equal(stored.reshape(hot.shape), rows)
    assert any("136 of 192 neurons" in n for n in model.forecast())


def needs(model: Model) -> int:
    plan = model.plan(step_key(model.options.n_ubatch, "last", True))
    return plan.bytes_by_space()["cuda:0"].total


def test_a_budget_is_kept_and_used(
    path: Path, device: type[SmallDevice], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GGUFLOW_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(placing, "GROWTH_BYTES", 0)
    kept = []
    for kib in (300, 360, 400, 600):
        model = Model.load(path, n_threads=1, n_ubatch=8, n_ctx=64, vram_budget=kib << 10)
        assert needs(model) <= kib << 10
        kept.append(sum(sparse_run(model.setup).n_gpu))  # type: ignore[union-attr]
        assert nmse(model.logits(IDS), run(path)) < 1e-6
    assert kept == sorted(kept) and kept[0] < kept[-1] == N_LAYER * N_FF


def test_prompts_are_cut_smaller_when_memory_is_short(
    path: Path, device: type[SmallDevice], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GGUFLOW_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(placing, "GROWTH_BYTES", 0)
    model = Model.load(path, n_threads=1, n_ctx=64, n_ubatch=64, vram_budget=600 << 10)
    assert model.options.n_ubatch == 32
    assert model.with_options(n_ubatch=64).options.n_ubatch == 32
    assert any("prompts in pieces of 32 tokens instead of 64" in n for n in model.forecast())
    roomy = Model.load(path, n_threads=1, n_ctx=64, n_ubatch=64, vram_budget=1 << 30)
    assert roomy.options.n_ubatch == 64


def test_a_budget_too_small_for_attention(path: Path, device: type[SmallDevice]) -> None:
    says = (r"`vram_budget` 0.01 GiB: .* are needed before the first neuron, .* more: attention "
            r"96.50 KiB, KV cache .*lower `n_ctx` or `n_ubatch`")  # fmt: skip
    with pytest.raises(MemoryError, match=says):
        Model.load(path, vram_budget=int(0.01 * 2**30))


def test_a_split_for_another_model(path: Path, tmp_path: Path, device: type[SmallDevice]) -> None:
    file = tmp_path / "s.gpuidx"
    write_random_split(file, (4, 4), "f00d")
    with pytest.raises(GgufError, match="this split is for another model"):
        Model.load(path, split=str(file))
    write_random_split(file, (4, 4, 4), model_hash(open_model(path)))
    with pytest.raises(GgufError, match="found 3, expected 2: this split is for another model"):
        Model.load(path, split=str(file))


def test_a_tied_head_takes_the_embeddings_along(tmp_path: Path, device: type[SmallDevice]) -> None:
    path = write(tmp_path / "tied.gguf", optional=tuple(o for o in USUAL if o != "output.weight"))
    file = tmp_path / "s.gpuidx"
    write_random_split(file, (40, 40), model_hash(open_model(path)))
    model = Model.load(path, n_threads=1, split=str(file))
    plan = model.plan(step_key(1, "last", False))
    assert plan.placement.of[plan.graph.leaves["token_embd.weight"]] == "cuda:0"
    assert nmse(model.logits(IDS), run(path)) < 1e-6
