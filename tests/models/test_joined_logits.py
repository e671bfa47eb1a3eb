"""Logits that devices make in parts: every device writes its own where the first one reads all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.backends import simulated
from gguflow.engine.backends.simulated import SimulatedBackend
from gguflow.engine.compile import Plan, Recv, round_up, within
from gguflow.engine.graph import Tensor, is_in_place
from gguflow.engine.model import Model
from gguflow.engine.plan_key import step_key
from gguflow.engine.runtime import BoundPlan
from gguflow.engine.runtime.exchange import SideBySide
from gguflow.engine.runtime.loops import LoopTogether
from gguflow.engine.sampling import SamplerSettings
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.engine.variants.parallel import variant
from gguflow.engine.variants.parallel.cuts import decide

IDS = [int(i) for i in np.random.default_rng(7).integers(3, 96, 12)]
GREEDY = SamplerSettings(temperature=0.0)


@pytest.fixture(autouse=True)
def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the vocabulary were large."""
    monkeypatch.setattr(variant, "decide", partial(decide, least=0))


def on(path: Path, n: int, **options: Any) -> Model:
    names = tuple(f"simulated:{k}" for k in range(n))
    return Model.load(path, backends=("numpy",), devices=names, split_mode="tensor", **options)


def never(*args: Any) -> dict[Any, Any]:
    return {}


def joined(plan: Plan) -> tuple[int, int]:
    """Parts of the logits that cross, and how many of these are there without a copy."""
    meetings = [s.meeting for s in plan.steps if isinstance(s, Recv)]
    found = [m for m in meetings if any(t.name.startswith("logits") for t in m.values)]
    return sum(len(m.values) for m in found), sum(len(m.written) for m in found)


def joins(plan: Plan) -> list[Tensor]:
    return [n for n in plan.nodes if n.op == "concat" and n.name.startswith("logits")]


@pytest.mark.parametrize(("arch", "n"), [("llama", 2), ("llama", 3), ("gemma2", 4), ("qwen3moe", 2),
                                         ("qwen3next", 2)])  # fmt: skip
def test_they_have_the_bits_of_logits_that_are_moved(
    arch: str, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, gain=2.0)
    model = on(path, n)
    plan = model.plan(step_key(3, "all", False))
    assert joined(plan) == (n - 1, n - 1)
    assert len(joins(plan)) == n - 1
    assert all(is_in_place(node, i) for node in joins(plan) for i in (0, 1))
    found = model.logits(IDS)
    monkeypatch.setattr("gguflow.engine.compile.plan.make_within", never)
    moved = on(path, n)
    assert joined(moved.plan(step_key(3, "all", False))) == (n - 1, 0)
    assert np.array_equal(moved.logits(IDS), found)


def test_nothing_is_brought_and_nothing_is_held_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forecast: no room for what crosses, and none for parts where they are made."""
    path = write_tiny(tmp_path / "m.gguf", gain=2.0)
    key = step_key(12, "all", False)
    plan = on(path, 2).plan(key)
    logits = plan.graph.outputs[0]
    parts = [t for t in plan.nodes if t.owner is logits and t is not logits]
    assert [plan.placement.of[t] for t in parts] == ["simulated:0", "simulated:1"]
    assert [t.view_offset for t in parts] == [0, parts[0].shape[1] * 4]
    assert {t.strides for t in parts} == {logits.strides}
    assert all(t not in arena.offsets for t in parts for arena in plan.arenas.values())
    monkeypatch.setattr("gguflow.engine.compile.plan.make_within", never)
    moved = on(path, 2).plan(key)
    assert plan.shared_bytes("simulated:0") == 0 < moved.shared_bytes("simulated:0")
    before, after = (p.arenas["simulated:1"].naive_nbytes for p in (moved, plan))
    assert after == before - round_up(parts[1].nbytes)


@pytest.mark.parametrize("size", [1, 12])
def test_their_memory_is_theirs_from_the_last_exchange_on(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another device may write its part as soon as it is through with that."""
    monkeypatch.setattr("gguflow.engine.compile.memory.SHARED_OUTPUT_BYTES", 0)
    plan = on(write_tiny(tmp_path / "m.gguf", gain=2.0), 2).plan(step_key(size, "all", True))
    logits = plan.graph.outputs[0]
    mine = [n for n in plan.nodes if plan.placement.of[n] == "simulated:0"]
    last = max(i for i, n in enumerate(mine) if n.op and n.op.startswith("all_reduce"))
    arena = plan.arenas["simulated:0"]
    begin, end = arena.offsets[logits], arena.offsets[logits] + logits.nbytes
    used = {s.owner for n in mine[last:] for s in (n, *n.live_srcs())}
    for t in used - {logits}:
        if t in arena.offsets:
            at = arena.offsets[t]
            assert at >= end or at + t.nbytes <= begin, t.name


@pytest.mark.parametrize("settings", [GREEDY, SamplerSettings(temperature=1.5, seed=4)])
def test_steps_without_the_host(
    settings: SamplerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0)
    session = on(path, 3).new_session()
    found = [list(session.generate(IDS, 40, settings)) for _ in range(2)]
    bound = session.bound_plan(1, "last", True)
    assert isinstance(bound.runner, SideBySide) and joined(bound.plan) == (2, 2)
    assert isinstance(bound.token_loop, LoopTogether)
    monkeypatch.setattr(BoundPlan, "token_loop", None)
    monkeypatch.setattr("gguflow.engine.compile.plan.make_within", never)
    session = on(path, 3).new_session()
    assert [list(session.generate(IDS, 40, settings)) for _ in range(2)] == found


def test_many_sequences(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0)
    prompts = [IDS, IDS[:5], [9, 8, 7]]
    alone = Model.load(path, backends=("numpy",), n_ctx=128)
    expected = [list(alone.new_session().generate(p, 12, GREEDY)) for p in prompts]
    model = on(path, 2, n_ctx=128, n_seqs=3)
    engine = Engine(model)
    found: dict[int, list[int | None]] = {
        engine.add(Request(tuple(p), 12, GREEDY)): [] for p in prompts
    }
    while engine.has_work:
        for token in engine.step():
            found[token.request].append(token.id)
    assert list(found.values()) == expected


def test_a_profile_counts_no_bytes_for_joining(tmp_path: Path) -> None:
    model = on(write_tiny(tmp_path / "m.gguf", gain=2.0), 2)
    bound = model.new_session().bound_plan(1, "last", True)
    rows = [r for r in bound.rows if r.op == "concat"]
    assert [r.bytes for r in rows] == [0]
    signals = [r for r in bound.rows if r.op == "signal" and r.name.startswith("logits")]
    assert [r.shapes for r in signals] == [((1, 48),)]


def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "_reaches", lambda other: False)


def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGUFLOW_LINK", "0")


def dense_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedBackend, "supports_strides", lambda self, node: False)


def without_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(within, "reductions", lambda steps, placement: [])


@pytest.mark.parametrize("change", [apart, without_links, dense_kernels, without_exchanges])
def test_otherwise_they_are_moved(
    change: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0)
    expected = on(path, 2).logits(IDS)
    change(monkeypatch)
    model = on(path, 2)
    assert joined(model.plan(step_key(3, "all", False))) == (1, 0)
    assert np.array_equal(model.logits(IDS), expected)
