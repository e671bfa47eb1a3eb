"""Stages of a model in processes of their own: here side by side in one, without a network."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_device import LinkableBackend, RemoteBuffer
from staged import pipeline
from tiny_model import write_tiny

import gguflow
from gguflow.cli.load import bundled_model
from gguflow.engine.backends import simulated as simulated_devices
from gguflow.engine.backends.base import Links, find_backend
from gguflow.engine.cluster import crossing, holder
from gguflow.engine.cluster.errors import ClusterError
from gguflow.engine.cluster.holder import stage_model
from gguflow.engine.limits import AUTO_LAYERS
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.options import OptionError, Options
from gguflow.engine.profile import Profile
from gguflow.engine.runtime.exchange import SideBySide
from gguflow.engine.sampling import GREEDY
from gguflow.engine.serving.request import EmbedRequest

OPTIONS = Options(n_ctx=256, n_seqs=4, n_cache=1024, n_threads=1, weight_cache=False)


@pytest.fixture(scope="module")
def whole() -> Model:
    return Model.load(bundled_model(), OPTIONS)


@pytest.mark.parametrize("n_gpu_layers", [1, AUTO_LAYERS])
def test_a_stage_has_all_of_its_layers_on_a_gpu_or_none(n_gpu_layers: int) -> None:
    options = replace(OPTIONS, n_gpu_layers=n_gpu_layers)
    with pytest.raises(OptionError, match="`n_gpu_layers`: a stage has all"):
        stage_model(open_model(bundled_model()), options, 0, {}, 2)


@pytest.mark.parametrize("n", [2, 3])
def test_the_same_bytes_as_in_one_process(whole: Model, n: int) -> None:
    staged, calls = pipeline(bundled_model(), OPTIONS, n)
    ids = whole.tokenizer.encode("Once upon a time there was a king who had a daughter")
    assert np.array_equal(staged.logits(ids), whole.logits(ids))
    for settings in (
        {"temperature": 0.0},
        {"seed": 6, "repeat_penalty": 1.1},
        {"seed": 3, "mirostat": 2},
    ):
        asked = {"max_tokens": 40, **settings}
        found = "".join(staged.generate("The old woman", **asked))
        assert found == "".join(whole.generate("The old woman", **asked))
    assert all("run" in c.seen for c in calls)


def test_values_of_devices_pass_through_pinned_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages on devices whose memory the host does not reach: a value is read once and written
    once, and has the bytes that it has in one process."""
    path = write_tiny(tmp_path / "m.gguf", gain=2.0, n_layer=4)
    options = replace(OPTIONS, devices=("remote",), backends=("numpy",))
    monkeypatch.setattr(
        holder, "find_backend",
        lambda name, given: LinkableBackend() if name.startswith("remote")
        else find_backend(name, given),
    )  # fmt: skip
    taken: list[tuple[int, bool]] = []
    read = RemoteBuffer.read

    def watched(self: RemoteBuffer, at: int, n: int, into: Any = None) -> np.ndarray:
        taken.append((n, into is not None))
        return read(self, at, n, into)

    monkeypatch.setattr(RemoteBuffer, "read", watched)
    staged, (calls,) = pipeline(path, options, 2)
    ids = [3 + i % 90 for i in range(40)]
    found = staged.logits(ids)
    rows = 4 * staged.hp.n_embd * 64  # of a plan for 64
    assert [pinned for n, pinned in taken if n == rows] == [True]
    assert calls.holder._staging._memory.nbytes >= rows  # type: ignore[union-attr]
    assert np.array_equal(found, Model.load(path, backends=("numpy",), n_ctx=256).logits(ids))


def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, **more: Any) -> Any:
    """A model of so many layers in n stages, each on a simulated device, and in one process."""
    path = write_tiny(tmp_path / "m.gguf", gain=2.0, n_layer=4)
    options = replace(OPTIONS, devices=("simulated:0",), backends=("numpy",), **more)
    staged, calls = pipeline(path, options, n)
    names = tuple(f"simulated:{k}" for k in range(n))
    split = {**more, "devices": names, "split_mode": "layer", "n_ctx": 256}
    return staged, calls, Model.load(path, backends=("numpy",), **split)


@pytest.mark.parametrize("n", [2, 3])
def test_stages_on_devices_of_one_machine_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    """They meet in memory that both processes have, and what crosses is never with the host."""
    staged, calls, whole = simulated(tmp_path, monkeypatch, n, n_ubatch=16, n_batch=64)
    ids = [3 + i % 90 for i in range(100)]
    found, expected = staged.new_session(), whole.new_session()
    bound = found.bound_plan(1, "last", False)
    assert isinstance(bound.runner, SideBySide) and found._runner.n_pieces > 1
    for _ in range(2):
        found.rewind(0)
        expected.rewind(0)
        assert np.array_equal(found.prefill(ids, None, "last")[0],
                              expected.prefill(ids, None, "last")[0])  # fmt: skip
        for token in ids[:5]:
            assert np.array_equal(
                found.step((token,), "last")[0], expected.step((token,), "last")[0]
            )
    text = [*found.generate(ids[:20], 12, GREEDY)]
    assert len(text) == 12 and text == [*expected.generate(ids[:20], 12, GREEDY)]
    for c in calls:
        assert "begin" in c.seen and "run" not in c.seen
        assert c.n_bytes < 30 * 2048  # inputs alone
    del found, bound
    assert all("close" in c.seen and "drop" in c.seen and not c.holder._sides for c in calls)


def test_a_profile_of_stages_that_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, _, _ = simulated(tmp_path, monkeypatch, 2)
    profile = Profile("x", 1, {})
    session = staged.new_session(profile)
    session.prefill([3 + i for i in range(20)], None, "last")
    session.step((6,), "last")
    rows = [*profile.rows()]
    assert {r.backend for r in rows if r.op == "mul_mat_add"} == {"simulated:0", "stage:1"}
    assert {"signal", "wait"} <= {r.op for r in rows}


def test_without_memory_in_common_stages_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(nbytes: int, device: Any) -> Any:
        raise OSError("no memory to lock")

    monkeypatch.setattr(crossing, "_opened", lambda name, *given: refuse(*given))
    staged, (calls,), whole = simulated(tmp_path, monkeypatch, 2)
    ids = [3 + i % 90 for i in range(30)]
    assert np.array_equal(staged.logits(ids), whole.logits(ids))
    assert "run" in calls.seen and "begin" not in calls.seen


def test_stages_on_one_card_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or one would wait on it for what the other cannot begin."""
    monkeypatch.setattr(simulated_devices, "Links", partial(Links, card="0000:17:00.0"))
    staged, (calls,), whole = simulated(tmp_path, monkeypatch, 2)
    ids = [3 + i % 90 for i in range(30)]
    bound = staged.new_session().bound_plan(1, "last", False)
    assert bound.unlinked == "simulated:0 and stage:1 are one card"
    assert np.array_equal(staged.logits(ids), whole.logits(ids))
    assert "run" in calls.seen and "begin" not in calls.seen


def test_a_stage_that_fails_at_once_is_told_when_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, (calls,), _ = simulated(tmp_path, monkeypatch, 2)
    session = staged.new_session()
    session.prefill([5, 6, 7], None, "last")

    def lost(*given: Any) -> Any:
        raise ClusterError("stage 1 is lost: its process has ended")

    calls.holder.end = lost
    with pytest.raises(ClusterError, match="stage 1 is lost"):
        session.step((5,), "last")


def test_many_sequences_pages_and_embeddings(whole: Model) -> None:
    """Prefixes found, pages given back and copied, host samplers, vectors: through the engine."""
    staged, calls = pipeline(bundled_model(), OPTIONS, 2)
    prompts = ["A wolf. " * 20 + who for who in ("The king", "A fox", "He", "Her son", "A king")]
    found = []
    for model in (whole, staged):
        texts = [""] * len(prompts)
        for i, piece in model.generate_many(prompts, max_tokens=30, seed=4, logprobs=2):
            texts[i] += piece
        engine = gguflow.Engine(model)
        engine.add(EmbedRequest(model.tokenizer.encode("A tale of a king")))
        vector = next(t.embedding for t in engine.step() if t.embedding is not None)
        found.append((texts, vector.tobytes()))
    assert found[0] == found[1]
    del engine, model
    assert "fetch" in calls[0].seen  # logits, for those who asked


def test_a_stage_loads_its_own_part(whole: Model) -> None:
    staged, (calls,) = pipeline(bundled_model(), OPTIONS, 2)
    mine = set(staged.weights.buffers)
    theirs = set(calls.holder._model.weights.buffers)
    assert not mine & theirs
    assert mine | theirs >= set(whole.weights.buffers)
    assert any(name.startswith("blk.0.") for name in mine)
    assert any(name.startswith("blk.8.") for name in theirs) and "output.weight" in theirs


def test_a_token_takes_one_vector_over(whole: Model) -> None:
    staged, (calls,) = pipeline(bundled_model(), OPTIONS, 2)
    ids = whole.tokenizer.encode("Once upon a time there was a king")
    session = staged.new_session()
    session.prefill(ids, None, "last")
    calls.n_bytes = 0
    session.step((5,), "last", prompt=False)
    inputs = 256 * 4 + 2048  # a row of floats; positions, rows, pages
    assert 256 * 4 < calls.n_bytes < inputs
    profile = Profile("x", 1, {})
    session.profile = profile
    session.step((6,), "last")
    rows = [r for r in profile.rows() if r.op == "wire"]
    assert [r.name for r in rows] == ["stage:1.there", "stage:1.back"]


def test_another_plan_is_refused() -> None:
    staged, (calls,) = pipeline(bundled_model(), OPTIONS, 2)
    opened = calls.holder.open
    calls.holder.open = lambda cache, plan, _: opened(cache, plan, "0" * 64)
    with pytest.raises(ClusterError, match="another plan"):
        staged.logits([1, 2, 3])
