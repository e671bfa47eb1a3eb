"""Linked runs: the native executor against a thread that plays the device, flag by flag."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linked_model import IDS, Pair, steps
from remote_device import LinkableBackend, ThreadProgram, take_place
from tiny_model import tiny_hparams, write_tiny

from gguflow.engine import model as model_module
from gguflow.engine.backends.base import DeviceId, Ticks, find_backend
from gguflow.engine.compile import Recv, Send
from gguflow.engine.graph import Tensor
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.profile import Profile
from gguflow.engine.runtime import LinkError, exchange
from gguflow.engine.runtime.clocks import Signal, offsets
from gguflow.engine.runtime.exchange import SideBySide
from gguflow.engine.runtime.turns import Turns
from gguflow.engine.session import Session
from gguflow.engine.variants.relu.identity import model_hash
from gguflow.engine.variants.relu.split import NeuronSplit, write_split

REMOTE = Pair("remote")  # two layers, two meetings each
load, unlinked = REMOTE.load, REMOTE.unlinked


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> LinkableBackend:
    device = LinkableBackend()
    take_place(monkeypatch, device, "remote")
    return device


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "m.gguf", seed=2, gain=2.0)


def side_by_side(s: Session) -> SideBySide:
    runner = s.bound_plan(1, "last", False).runner
    assert isinstance(runner, SideBySide)
    return runner


# -- the same values ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_linked_runs_give_the_same_bits(
    remote: LinkableBackend, path: Path, monkeypatch: pytest.MonkeyPatch, n_threads: int
) -> None:
    expected = unlinked(monkeypatch, path, n_threads=n_threads)
    ran: list[Any] = []
    remote.hook = ran.append  # type: ignore[assignment]
    model = load(path, n_threads=n_threads)
    np.testing.assert_array_equal(steps(model), expected)
    # One program with two meetings a layer, from the first step on.
    flags = [s for s in ran if not isinstance(s, Tensor)]
    assert [type(s) for s in flags] == [Send, Recv] * 2 * len(IDS)


@pytest.mark.parametrize("seed", range(6))
def test_random_splits_and_timing(
    remote: LinkableBackend, path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    overrides = REMOTE.random_overrides(path, rng)
    expected = unlinked(monkeypatch, path, overrides=overrides)
    remote.hook = lambda step: time.sleep(rng.choice([0, 0, 0, 1e-3]))
    model = load(path, overrides=overrides)
    np.testing.assert_array_equal(steps(model), expected)


@pytest.mark.parametrize("n", [3, 8])
def test_batches_are_linked_too(
    remote: LinkableBackend, path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    def logits(model: Model) -> np.ndarray:
        s = model.new_session()
        return np.stack([s.logits(IDS[:n]).copy() for _ in range(3)])

    found = logits(load(path))
    monkeypatch.setenv("GGUFLOW_LINK", "0")
    np.testing.assert_array_equal(found, logits(load(path)))


def test_many_runs_leave_the_flags_clean(remote: LinkableBackend, path: Path) -> None:
    s = load(path).new_session()
    s.step((1,), "last")
    for _ in range(300):
        s.rewind(1)
        s.step((5,), "last")
    assert not side_by_side(s).flags.array.any()


class SmallDevice(LinkableBackend):
    """In the place of a GPU."""

    id = DeviceId("cuda")
    name = space = "cuda:0"


@pytest.mark.parametrize("mode", ["predict", "exact"])
@pytest.mark.parametrize("arch", ["relullama", "opt"])  # with a gate, and with biases
def test_a_layer_split_by_neurons_meets_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str, mode: Any
) -> None:
    monkeypatch.setattr(
        model_module, "find_backend",
        lambda name, o=None: SmallDevice() if name == "cuda" else find_backend(name, o),
    )  # fmt: skip
    hp = tiny_hparams(arch)
    rng = np.random.default_rng(4)
    shapes = {"fc1": (12, hp.n_embd), "fc2": (hp.n_ff, 12)}
    weights = {
        f"blk.{i}.{fc}.weight": rng.standard_normal(shape).astype(np.float32)
        for i in range(hp.n_layer)
        for fc, shape in shapes.items()
    }
    optional = ("output.weight", *([".bias"] if arch == "opt" else []))
    path = write_tiny(tmp_path / "m.gguf", arch, gain=2.0, weights=weights, optional=optional)
    buckets = [np.sort(rng.choice(hp.n_ff, n, replace=False)) for n in (40, 20)]
    split = NeuronSplit(hp.n_ff, tuple(b.astype(np.int32) for b in buckets))
    write_split(tmp_path / "s", split, model_hash(open_model(path)), 1 << 30)

    def model() -> Model:
        return Model.load(path, n_threads=2, sparse=mode, split=str(tmp_path / "s"))

    meetings = side_by_side(model().new_session()).sides.meetings
    inside = [m for m in meetings if ".ffn." in m.before.name]
    assert len(inside) == 2 * hp.n_layer
    assert len(meetings) == len(inside) + 1  # the embeddings come from the host
    found = steps(model())
    monkeypatch.setenv("GGUFLOW_LINK", "0")
    np.testing.assert_array_equal(found, steps(model()))


def test_sessions_on_two_threads_take_turns(
    remote: LinkableBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "PATIENCE_S", 2.0)
    model = load(path)
    expected = steps(model)
    remote.hook = lambda step: time.sleep(2e-4)
    with ThreadPoolExecutor(3) as threads:
        for found in threads.map(lambda _: steps(model), range(9)):
            np.testing.assert_array_equal(found, expected)


# -- what is not linked says why ------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"overrides": ((r"^output", "cpu"), (".*", "remote"))}, "only 2 meetings"),
        ({"backends": ("remote", "numpy"), "overrides": ((".*ffn.*", "numpy"),)},
         "numpy and remote cannot wait for each other"),
        ({"backends": ("remote", "cpu", "numpy"),
          "overrides": ((r".*1\.ffn.*", "numpy"), *REMOTE.overrides)},
         "cpu and numpy share one memory space"),
    ],
)  # fmt: skip
def test_the_reason_is_kept(
    remote: LinkableBackend, path: Path, options: dict[str, Any], reason: str
) -> None:
    given = {"backends": ("remote", "cpu")} | options
    bound = Model.load(path, **given).new_session().bound_plan(1, "last", False)
    assert isinstance(bound.runner, Turns)
    assert bound.unlinked is not None and reason in bound.unlinked


# -- errors ---------------------------------------------------------------------------------------


def before_second(path: Path, **options: Any) -> tuple[Session, np.ndarray]:
    """A session after its first step, and the logits of the next one."""
    s = load(path, **options).new_session()
    s.step(IDS[:1], "last")
    expected = s.step(IDS[1:2], "last")[0].copy()
    s.rewind(1)
    return s, expected


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_signal_that_never_comes_ends_the_run(
    remote: LinkableBackend, path: Path, monkeypatch: pytest.MonkeyPatch, n_threads: int
) -> None:
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.5)
    s, expected = before_second(path, n_threads=n_threads)
    for _ in range(2):
        s.rewind(1)
        remote.hook = lambda step: isinstance(step, Send)
        began = time.monotonic()
        with pytest.raises(LinkError, match=r"cpu waited 0.5 s for blk\.0\.\S+ from remote to"):
            s.step(IDS[1:2], "last")
        assert 0.5 < time.monotonic() - began < 4
        assert len(s.tokens) == 1
        remote.hook = lambda step: None  # and the next run is as if nothing had been
        np.testing.assert_array_equal(s.step(IDS[1:2], "last")[0], expected)


def test_a_host_that_is_too_slow_ends_the_run(
    remote: LinkableBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.4)
    s, expected = before_second(path)
    host = side_by_side(s).program("cpu")
    start = host.start

    def late(timed: bool = False, live: Any = None) -> None:
        time.sleep(1.2)
        start(timed, live)

    monkeypatch.setattr(host, "start", late)
    with pytest.raises(LinkError, match=r"remote waited 0.8 s for blk\.0\.\S+ from cpu"):
        s.step(IDS[1:2], "last")
    monkeypatch.setattr(host, "start", start)
    np.testing.assert_array_equal(s.step(IDS[1:2], "last")[0], expected)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_runs_given_up_anywhere_leave_nothing_behind(
    remote: LinkableBackend, path: Path, monkeypatch: pytest.MonkeyPatch, n_threads: int
) -> None:
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.2)
    s, expected = before_second(path, n_threads=n_threads)
    program = side_by_side(s).program("remote")
    assert isinstance(program, ThreadProgram)
    signals = [x for x in program.steps if isinstance(x, Send)]
    for i in range(8):
        s.rewind(1)
        lost = signals[i % len(signals)]
        remote.hook = lambda step, lost=lost: step is lost  # type: ignore[misc]
        with pytest.raises(LinkError):
            s.step(IDS[1:2], "last")
        remote.hook = lambda step: None
        np.testing.assert_array_equal(s.step(IDS[1:2], "last")[0], expected)


@pytest.mark.parametrize("at", [1, 6, -2])
def test_what_the_device_raises_is_raised(
    remote: LinkableBackend, path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.2)
    s, expected = before_second(path)
    program = side_by_side(s).program("remote")
    assert isinstance(program, ThreadProgram)
    bad = program.steps[at]

    def fail(step: Any) -> None:
        if step is bad:
            raise RuntimeError("illegal address")

    remote.hook = fail
    with pytest.raises(RuntimeError, match="illegal address"):
        s.step(IDS[1:2], "last")
    remote.hook = lambda step: None
    np.testing.assert_array_equal(s.step(IDS[1:2], "last")[0], expected)


def test_an_interrupt_does_not_leave_the_device_waiting(
    remote: LinkableBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s, expected = before_second(path)
    program = side_by_side(s).program("remote")
    start = program.start

    def interrupted(timed: bool = False, live: Any = None) -> None:
        start(timed)
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "start", interrupted)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        s.step(IDS[1:2], "last")
    assert time.monotonic() - began < 5  # a wait's patience is twice that
    monkeypatch.setattr(program, "start", start)
    np.testing.assert_array_equal(s.step(IDS[1:2], "last")[0], expected)


# -- profiles -------------------------------------------------------------------------------------


def test_a_profile_shows_both_sides_on_one_clock(remote: LinkableBackend, path: Path) -> None:
    remote.hook = lambda step: time.sleep(2e-3) if isinstance(step, Send) else None
    profile = Profile()
    steps(load(path), profile)
    for k, step in enumerate(profile.steps):
        rows = [r for r in profile.rows([k]) if r.op != "host"]
        sides = {b: [r for r in rows if r.backend == b] for b in ("cpu", "remote")}
        assert all(r.us >= 0 and r.start_us >= step.start_us - 1 for r in rows)
        assert sum(r.op in ("wait", "signal") for r in rows) == 8
        for side in sides.values():  # each side's own rows follow one another
            ends = [r.start_us + r.us for r in side]
            assert all(a <= r.start_us + 1e-3 for a, r in zip(ends, side[1:], strict=False))
        # The device's delay before it signals is the host's waiting.
        waits = [r for r in sides["cpu"] if r.op == "wait"]
        assert [r.name.split(".")[1] for r in waits] == ["0", "1"]
        assert all(r.us > 1000 for r in waits[1:])
        signals = [r for r in sides["remote"] if r.op == "signal"]
        for s, w in zip(signals, waits, strict=True):
            assert s.start_us <= w.start_us + w.us


def test_the_offset_is_bounded_by_every_meeting() -> None:
    host = Ticks(np.array([1000, 1400]), of_host=True)
    device = Ticks(np.array([100, 200, 300]), of_host=False)
    third = Ticks(np.array([7100, 7300]), of_host=False)
    # Clocks 1000 and 7000 apart from the device's; signals under way for 10 each.
    signals = [
        Signal("device", 150, "cpu", 1160), Signal("cpu", 1240, "device", 250),
        Signal("device", 160, "third", 7170), Signal("third", 7210, "device", 220),
    ]  # fmt: skip
    found = offsets({"cpu": host, "device": device, "third": third}, signals, 1000, 1400)
    assert found["cpu"] == 0
    assert found["device"] == pytest.approx(1000, abs=10)
    assert found["third"] == pytest.approx(-6000, abs=20)
    assert offsets({"device": device}, [], 1090, 1310) == {"device": 1000}
