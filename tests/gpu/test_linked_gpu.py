"""Linked runs: launches of the flag kernels without a GPU, whole plans with one."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linked_model import IDS, Pair, steps
from tiny_model import write_tiny

from gguflow.engine.model import Model
from gguflow.engine.profile import Profile
from gguflow.engine.runtime import LinkError, exchange
from gguflow.engine.runtime.exchange import SideBySide
from gguflow.engine.sampling import GREEDY
from gguflow.engine.session import Session
from gguflow.kernels.cuda import link

BOTH = Pair("cuda")
load, unlinked = BOTH.load, BOTH.unlinked

# -- launches -------------------------------------------------------------------------------------


def pieces(args: bytes) -> tuple[tuple[int, ...], list[tuple[int, int, int]]]:
    """The numbers at the start of the arguments, and the copies."""
    head = "@PPPqIi"
    found = struct.unpack_from(head, args)
    at = struct.calcsize(head)
    return found, [struct.unpack_from("@PPq", args, at + 24 * i) for i in range(found[-1])]


def test_a_signal_copies_whole_words_and_sets_one_flag() -> None:
    (launch,) = link.signal(4096, [(1 << 20, 2 << 20, 100), (3 << 20, 4 << 20, 16)], ticket=512)
    assert launch.kernel == link.SIGNAL
    numbers, copies = pieces(launch.args)
    assert numbers == (4096, 0, 512, 0, 0, 2)
    assert copies == [(1 << 20, 2 << 20, 7), (3 << 20, 4 << 20, 1)]
    assert (launch.grid, launch.block) == ((1, 1, 1), (32, 1, 1))


def test_a_large_copy_takes_many_blocks_but_not_more_than_fit() -> None:
    (launch,) = link.signal(64, [(0, 0, 44 << 10)], 0)
    assert (launch.grid, launch.block) == ((3, 1, 1), (1024, 1, 1))
    (launch,) = link.signal(64, [(0, 0, 64 << 20)], 0)
    assert launch.grid == (link.MAX_BLOCKS, 1, 1)


def test_many_values_are_several_launches_of_which_one_has_the_flag() -> None:
    spans = [(i << 20, i << 21, 64) for i in range(link.PIECES + 3)]
    signals = [pieces(launch.args)[0] for launch in link.signal(64, spans, 8)]
    assert [(n[0], n[-1]) for n in signals] == [(0, link.PIECES), (64, 3)]
    waits = [pieces(launch.args)[0] for launch in link.wait(64, spans, 8, 128, 7, 9_000)]
    assert waits[0] == (64, 128, 8, 9_000, 7, link.PIECES)
    assert (waits[1][0], waits[1][-1]) == (0, 3)


def test_the_arguments_are_those_of_the_source() -> None:
    text = Path(link.__file__).with_suffix(".cu").read_text()
    assert f"kPieces = {link.PIECES};" in text
    for launch in (link.idle(link.SIGNAL), link.wait(64, [], 0, 0, 1, 1)[0]):
        assert len(launch.args) == 16 * -(-(40 + 24 * link.PIECES) // 16)


# -- plans over both devices ----------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "m.gguf", seed=2, gain=2.0)


def side_by_side(s: Session) -> SideBySide:
    runner = s.bound_plan(1, "last", False).runner
    assert isinstance(runner, SideBySide)
    return runner


@pytest.mark.gpu
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_linked_runs_give_the_same_bits(
    gpu: Any, path: Path, monkeypatch: pytest.MonkeyPatch, n_threads: int
) -> None:
    expected = unlinked(monkeypatch, path, n_threads=n_threads)
    model = load(path, n_threads=n_threads)
    bound = model.new_session().bound_plan(1, "last", False)
    assert isinstance(bound.runner, SideBySide), bound.unlinked
    np.testing.assert_array_equal(steps(model), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(6))
def test_random_splits(gpu: Any, path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    overrides = BOTH.random_overrides(path, np.random.default_rng(seed))
    expected = unlinked(monkeypatch, path, overrides=overrides)
    np.testing.assert_array_equal(steps(load(path, overrides=overrides)), expected)


@pytest.mark.gpu
def test_values_of_many_sizes_cross(gpu: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def logits(model: Model) -> np.ndarray:
        s = model.new_session()
        return np.concatenate([s.logits((IDS * 5)[:n]) for n in (1, 7, 47) for _ in range(3)])

    found = logits(load(path))
    monkeypatch.setenv("GGUFLOW_LINK", "0")
    np.testing.assert_array_equal(found, logits(load(path)))


@pytest.mark.gpu
def test_a_thousand_steps_meet(gpu: Any, path: Path) -> None:
    s = load(path).new_session()
    s.step((1,), "last")
    first = None
    for _ in range(1000):
        found = s.step((5,), "last")[0].copy()
        s.rewind(1)
        if first is not None:
            np.testing.assert_array_equal(found, first)
        first = found
    assert not side_by_side(s).flags.array.any()


@pytest.mark.gpu
def test_text_is_the_one_devices(gpu: Any, path: Path) -> None:
    def text(model: Model) -> list[int]:
        return list(model.new_session().generate(IDS, 40, GREEDY))

    assert text(load(path)) == text(load(path, overrides=((".*", "cuda"),)))


@pytest.mark.gpu
@pytest.mark.parametrize("late", ["host", "interrupt"])
def test_a_device_that_waits_in_vain_goes_on(
    gpu: Any, path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.2)
    s = load(path).new_session()
    s.step(IDS[:1], "last")
    expected = s.step(IDS[1:2], "last")[0].copy()
    s.rewind(1)
    host = side_by_side(s).program("cpu")
    start = host.start

    def leave(timed: bool = False, live: Any = None) -> None:
        if late == "interrupt":
            raise KeyboardInterrupt
        import time

        time.sleep(0.8)
        start(timed, live)

    monkeypatch.setattr(host, "start", leave)
    with pytest.raises(LinkError if late == "host" else KeyboardInterrupt):
        s.step(IDS[1:2], "last")
    monkeypatch.setattr(host, "start", start)
    np.testing.assert_array_equal(s.step(IDS[1:2], "last")[0], expected)


@pytest.mark.gpu
def test_a_profile_shows_both_sides(gpu: Any, path: Path) -> None:
    profile = Profile()
    steps(load(path), profile)
    for k in range(len(profile.steps)):
        rows = [r for r in profile.rows([k]) if r.op != "host"]
        assert {r.backend for r in rows} == {"cpu", "cuda:0"}
        assert all(r.us >= 0 for r in rows)
        by_name = {r.name: r for r in rows}
        waits = [r for r in rows if r.op == "wait" and r.backend == "cpu"]
        signals = [r for r in rows if r.op == "signal" and r.backend == "cuda:0"]
        assert len(waits) == len(signals) == 2 and len(by_name) == len(rows)
        for s, w in zip(signals, waits, strict=True):  # within the clocks' resolution
            assert s.start_us <= w.start_us + w.us + 5
