"""Pieces of prompts in several devices' layers at the same time: simulated devices."""

from __future__ import annotations

import threading
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.backends.simulated.program import SimulatedProgram
from gguflow.engine.compile import Send
from gguflow.engine.graph import Tensor
from gguflow.engine.model import Model
from gguflow.engine.profile import Profile
from gguflow.engine.runtime import LinkError, exchange
from gguflow.engine.runtime.exchange import SideBySide
from gguflow.engine.sampling import GREEDY
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.engine.serving.runs import in_runs

IDS = [3 + i * 7 % 90 for i in range(150)]
SIZES: dict[str, Any] = {"n_ubatch": 16, "n_batch": 64, "n_ctx": 256}


def on(path: Path, n: int, **options: Any) -> Model:
    """A model of two layers or more: a layer on the first device, and the head with the last."""
    names = tuple(f"simulated:{k}" for k in range(n))
    given = {"backends": ("numpy",), "devices": names, "split_mode": "layer", **SIZES}
    given["tensor_split"] = (1.0,) * (n - 1) + (2.0,)
    return Model.load(path, **(given | options))


def alone(path: Path, **options: Any) -> Model:
    return Model.load(path, **({"backends": ("numpy",), **SIZES} | options))


@pytest.fixture
def under_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs were under way when one began."""
    n, found = 0, []

    def begin(self: SideBySide, *args: Any) -> None:
        nonlocal n
        began(self, *args)
        n += 1
        found.append(n)

    def end(self: SideBySide) -> None:
        nonlocal n
        n -= 1
        ended(self)

    began, ended = SideBySide.begin, SideBySide.end
    monkeypatch.setattr(SideBySide, "begin", begin)
    monkeypatch.setattr(SideBySide, "end", end)
    return found


@pytest.mark.parametrize(
    ("arch", "n"), [("llama", 2), ("llama", 3), ("gemma2", 2), ("qwen3moe", 2), ("qwen3next", 2)]
)
def test_pieces_have_the_bits_they_have_alone(
    arch: str, n: int, tmp_path: Path, under_way: list[int]
) -> None:
    keys = {".attention.sliding_window": 20} if arch == "gemma2" else {}
    layers = {"n_layer": 3} if arch == "llama" else {}
    path = write_tiny(tmp_path / "m.gguf", arch, gain=2.0, keys=keys, **layers)
    expected = alone(path).new_session().prefill(IDS, None, "last")[0].copy()
    assert not under_way
    session = on(path, n).new_session()
    for _ in range(2):
        session.rewind(0)
        assert np.array_equal(session.prefill(IDS, None, "last")[0], expected)
    assert max(under_way) == n + 1  # one for each device, and one that waits for them


def test_pieces_beside_layers_on_the_host(tmp_path: Path, under_way: list[int]) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0, n_layer=4)
    expected = alone(path).new_session().prefill(IDS, None, "last")[0].copy()
    session = on(path, 2, n_gpu_layers=3).new_session()
    assert np.array_equal(session.prefill(IDS, None, "last")[0], expected)
    model = on(path, 2, n_gpu_layers=3, backends=("cpu", "numpy"), n_threads=1)
    found = model.new_session().prefill(IDS, None, "last")[0]
    assert ((found - expected) ** 2).sum() < 1e-7 * (expected**2).sum()
    assert max(under_way) == 3


def test_a_device_goes_on_while_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = on(write_tiny(tmp_path / "m.gguf", gain=2.0), 2)
    run, spans = SimulatedProgram._run, []

    def slow(program: SimulatedProgram, step: Any, live: Any) -> None:
        """The first op of a device's layers, for which nothing is waited any more."""
        if step is next(s for s in program.steps if isinstance(s, Tensor)):
            began = time.perf_counter()
            time.sleep(0.02)
            spans.append((threading.get_ident(), began, time.perf_counter()))
        run(program, step, live)

    monkeypatch.setattr(SimulatedProgram, "_run", slow)
    model.new_session().prefill(IDS[:128], None, "none")
    assert len(spans) == 16
    overlapping = [
        (a, b) for a, b in combinations(spans, 2) if a[0] != b[0] and a[1] < b[2] and b[1] < a[2]
    ]
    assert len(overlapping) >= 3  # of 6; none in turn


def test_requests_together_have_the_text_they_have_alone(
    tmp_path: Path, under_way: list[int]
) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0, n_layer=3)
    rng = np.random.default_rng(5)
    lengths = [1, 100, 17, 64, 3, 130, 40, 16, 33, 90]
    prompts = [rng.integers(3, 96, n).tolist() for n in lengths]
    session = alone(path).new_session()
    expected = [list(session.generate(p, 12, GREEDY)) for p in prompts]
    engine = Engine(on(path, 2, n_seqs=4, n_cache=512))
    ids = [engine.add(Request(p, 12, GREEDY)) for p in prompts]
    found: dict[int, list[int]] = {i: [] for i in ids}
    while engine.has_work:
        for t in engine.step():
            assert t.id is not None
            found[t.request].append(t.id)
    assert [found[i] for i in ids] == expected
    assert max(under_way) == 3
    assert engine.stats.n_available == engine.stats.n_pages


def test_rows_that_all_have_outputs_are_one_run(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0)
    asked = Request(IDS[:70], 2, GREEDY, logprobs=1, prompt_logprobs=True)

    def tokens(model: Model) -> Any:
        engine = Engine(model)
        engine.add(asked)
        made = []
        while engine.has_work:
            made += engine.step()
        return [(t.id, t.logprob, t.prompt_logprobs) for t in made]

    assert tokens(on(path, 2)) == tokens(alone(path))


def test_a_profile_has_every_piece(tmp_path: Path, under_way: list[int]) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0)
    session = on(path, 2).new_session()
    session.profile = profile = Profile()
    session.prefill(IDS, None, "none")
    assert len(profile.steps) == -(-len(IDS) // 16) and not under_way


@pytest.mark.parametrize("lost", [1, 4])
def test_a_piece_that_fails_ends_them_all_and_the_next_run_is_as_ever(
    lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first device leaves out what it sends of one piece."""
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.2)
    path = write_tiny(tmp_path / "m.gguf", gain=2.0)
    session = on(path, 2).new_session()
    expected = session.prefill(IDS, None, "last")[0].copy()
    session.rewind(0)
    run, n_sent = SimulatedProgram._run, 0

    def lossy(program: SimulatedProgram, step: Any, live: Any) -> None:
        nonlocal n_sent
        n_sent += isinstance(step, Send)
        if not (isinstance(step, Send) and n_sent == lost):
            run(program, step, live)

    monkeypatch.setattr(SimulatedProgram, "_run", lossy)
    with pytest.raises(LinkError, match=r"waited .* from simulated:0"):
        session.prefill(IDS, None, "last")
    assert session.n_tokens == (lost - 1) // 4 * 64  # those of the batches before
    monkeypatch.setattr(SimulatedProgram, "_run", run)
    session.rewind(0)
    assert np.array_equal(session.prefill(IDS, None, "last")[0], expected)


def test_the_forecast_has_room_for_them(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    two, one = (on(path, 2, **x).largest_plans() for x in ({}, {"split_mode": "none"}))
    assert len(two) == len(one) + 3


def test_runs_hold_all_that_there_is() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        most = int(rng.integers(1, 20))
        n = int(rng.integers(1, most + 1))
        lengths = rng.integers(1, 30, n).tolist()
        ends = (rng.random(n) < 0.6).tolist()
        runs = in_runs(lengths, ends, most)
        done = [0] * n
        for k, run in enumerate(runs):
            assert run and sum(b - a for _, a, b in run) <= most
            for i, a, b in run:
                assert done[i] == a < b
                done[i] = b
                assert not (ends[i] and b == lengths[i]) or k == len(runs) - 1
        assert done == lengths
        assert len(runs) <= 1 + -(-sum(lengths) // most)
