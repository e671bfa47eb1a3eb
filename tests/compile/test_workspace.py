"""Plans of one runner exchange over the same memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanges import bound_to, check, check_together, exchanging_plan, fill
from tiny_model import write_tiny

from gguflow.engine.backends.null.backend import NullBackend
from gguflow.engine.backends.simulated import SimulatedBackend
from gguflow.engine.compile import SpaceBytes
from gguflow.engine.model import Model
from gguflow.engine.runtime import LinkError, Workspace, exchange
from gguflow.engine.sampling import SamplerSettings
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.kernels.cuda import all_reduce, all_reduce_norm

GREEDY = SamplerSettings(temperature=0.0)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_plans_in_turns_over_one_workspace(n: int) -> None:
    devices = [SimulatedBackend(k) for k in range(n)]
    kinds = [[(40, 64, None)], [300, 5], [(9, 64, None)], [7]]
    workspace = check_together(devices, kinds, 3)
    assert len(workspace._channels) == n


def test_a_plan_that_asks_for_more_gets_more() -> None:
    """And one that was bound before goes on with what it has."""
    devices = [SimulatedBackend(k) for k in range(2)]
    by_name = {d.name: d for d in devices}
    workspace, rng = Workspace(), np.random.default_rng(1)
    less = bound_to(devices, exchanging_plan(devices, [4]), workspace)
    assert workspace.reserve(exchanging_plan(devices, [4000]), by_name)
    more = bound_to(devices, exchanging_plan(devices, [4000]), workspace)
    again = bound_to(devices, exchanging_plan(devices, [4]), workspace)
    for _ in range(3):
        for bound in (less, more, again):
            check(bound, rng)


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("rows", [300, 512, 2048])
def test_the_largest_plans_channel_has_room_for_all_that_have_fewer_rows(n: int, rows: int) -> None:
    """Some share rows and some do not, some parts are small and some large."""
    width = 4 * 4096
    share = -(-rows // n)
    most = all_reduce_norm.channel_bytes(n, [width], [(share, width)])
    for m in (1, 7, 31, 32, 64, all_reduce_norm.ROWS, rows):
        fewer = [], [(-(-m // n), width)]
        sizes, shares = fewer if m > all_reduce_norm.ROWS else ([m * width], [])
        both = sorted({width, *sizes}), sorted({(share, width), *shares})
        assert all_reduce_norm.channel_bytes(n, *both) == most
    whole = [rows * width]  # where rows are not shared, all parts are whole
    assert all_reduce.channel_bytes(n, [*whole, width, 31 * width, 64 * width]) == (
        all_reduce.channel_bytes(n, whole)
    )


def test_an_engine_of_many_plans_takes_what_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside inputs and results, and what steps without the host bring to each other: of each size
    there is half as much as of the next."""
    taken: Counter[str] = Counter()
    alloc = SimulatedBackend.alloc

    def counted(self: SimulatedBackend, nbytes: int) -> Any:
        taken[self.space] += nbytes
        return alloc(self, nbytes)

    path = write_tiny(tmp_path / "m.gguf", gain=2.0)
    names = ("simulated:0", "simulated:1")
    model = Model.load(path, backends=("numpy",), devices=names, split_mode="tensor",
                       n_ctx=128, n_seqs=8, n_ubatch=32)  # fmt: skip
    monkeypatch.setattr(SimulatedBackend, "alloc", counted)
    engine = Engine(model)
    for i in range(8):
        engine.add(Request(tuple(3 + (i + j) % 90 for j in range(9 + 5 * i)), 6 + i, GREEDY))
    while engine.has_work:
        engine.step()
    assert len(engine._runner._plans) > 4
    plans = model.largest_plans()
    for name in names:
        b = SpaceBytes.together([p.bytes_by_space()[name] for p in plans])
        assert b.exchange
        told = b.states + b.arena + b.exchange
        flags = 4096 * len(engine._runner._plans)
        assert told <= taken[name] <= told + 2 * b.copies + flags


def test_a_run_that_was_given_up_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another plan of the same workspace runs as if nothing had been."""
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.2)
    devices = [SimulatedBackend(k) for k in range(2)]
    workspace, rng = Workspace(), np.random.default_rng(2)
    first, other = (
        bound_to(devices, exchanging_plan(devices, sizes), workspace) for sizes in ([9, 4], [6])
    )
    check(first, rng)
    check(other, rng)
    program: Any = first.runner.programs[1]
    with monkeypatch.context() as patch:
        patch.setattr(program, "start", lambda timed=False, live=None: None)
        fill(first, rng)
        with pytest.raises(LinkError, match="the others' parts of"):
            first.run()
    check(other, rng)
    check(first, rng)


def test_nothing_is_cleared_under_a_run() -> None:
    devices = [SimulatedBackend(k) for k in range(2)]
    workspace = Workspace()
    bound = bound_to(devices, exchanging_plan(devices, [4]), workspace)
    check(bound, np.random.default_rng(3))

    def is_clear() -> bool:
        return not any(b.host().any() for b in workspace._channels.values())

    assert not is_clear()
    workspace.begin()
    workspace.begin()
    workspace.spoil()
    workspace.end()
    assert not is_clear()
    workspace.end()
    assert is_clear()
    check(bound, np.random.default_rng(4))


def test_no_memory_is_taken_where_nothing_is_exchanged() -> None:
    device = NullBackend(0)
    plan = exchanging_plan([device], [4])
    plan.channels.clear()
    assert not Workspace().reserve(plan, {device.name: device})
