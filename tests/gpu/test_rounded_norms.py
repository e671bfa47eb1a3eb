"""Which norms cross between GPUs in 16 bits: those that products read which round them so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gguflow.engine.backends.null.backend import NullBackend
from gguflow.engine.compile import Plan
from gguflow.engine.graph import Tensor, exchanged_by_rank
from gguflow.engine.load.random import random_model
from gguflow.engine.plan_key import PlanKey, step_key
from gguflow.engine.scaling.plans import Plans
from gguflow.kernels.cuda import launch

pytest.importorskip("cuda.bindings")


def rounded_types(plan: Plan, device: str) -> dict[Tensor, str | None]:
    """Of the sums with norms of one device's program."""
    from gguflow.engine.backends.cuda.exchange import Exchanges
    from gguflow.kernels.cuda.launch import DeviceInfo

    steps: list[Any] = [s for s in plan.program(device) if isinstance(s, Tensor)]
    sums = [s for s in steps if exchanged_by_rank(s) and len(exchanged_by_rank(s)[0]) > 1]
    found = Exchanges(
        SimpleNamespace(info=DeviceInfo()),  # type: ignore[arg-type]
        steps,
        dict.fromkeys(sums),  # type: ignore[arg-type]
    )
    return {s: found._dtypes.get(s) for s in sums}


@pytest.mark.parametrize(
    ("model", "wanted"),
    [("llama3-8b:F16", "f16"), ("llama3-8b:Q4_0", "bf16"), ("tinyllama-1.1b:F32", None),
     pytest.param("llama3-8b:Q4_K_M", "bf16", marks=pytest.mark.slow),
     pytest.param("llama3-8b:BF16", "bf16", marks=pytest.mark.slow)],
)  # fmt: skip
def test_norms_that_products_read_are_rounded(
    model: str, wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Devices that are not there, which take what GPUs do.
    monkeypatch.setattr(NullBackend, "supports", lambda self, node: launch.supports(node))
    plans = Plans(random_model(model), 2, 640, 1)
    plan = plans._model.plan(step_key(512, "last", False))
    for device in plans.names:
        found = rounded_types(plan, device)
        *normed, last = found
        assert [t.srcs[0] is not None for t in found] == [True] * len(normed) + [False]
        assert len(normed) == 2 * (plans.n_layer - 1) - 1
        # Queries, keys and values are one op with what follows, whose columns are as they are.
        assert {found[t] for t in normed if ".ffn." in t.name} == {None}
        assert {found[t] for t in normed if ".attn." in t.name} == {wanted}
        assert found[last] is None  # the last layer picks rows of it


def test_which_rows_are_shared_out() -> None:
    from gguflow.kernels.cuda.all_reduce_norm import shares_rows

    assert shares_rows(257, 4096, False) and shares_rows(512, 8192, True)
    assert not shares_rows(256, 4096, False)  # of which quantized products norm themselves
    assert shares_rows(65, 4096, True) and not shares_rows(64, 4096, True)
    assert not shares_rows(512, 4096, True, equal_bits=True)
    assert not shares_rows(512, 4100, True) and not shares_rows(512, 16384, True)


@pytest.mark.parametrize(
    ("model", "n", "shared"),
    [("llama3-8b:Q4_0", 256, False), ("llama3-8b:F16", 64, False), ("llama3-8b:F16", 65, True),
     ("llama3-8b:F16", 128, True)],
)  # fmt: skip
def test_rows_of_a_step(model: str, n: int, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are not shared out. Where they are, products find their columns rounded."""
    monkeypatch.setattr(NullBackend, "supports", lambda self, node: launch.supports(node))
    plans = Plans(random_model(model), 2, 640, 256)
    plan = plans._model.plan(PlanKey(n, 0, n, n, True))
    found = rounded_types(plan, plans.names[1])
    assert bool(found) == shared
    if shared:
        *normed, last = found
        assert {found[t] for t in normed} == {"f16"} and found[last] is None
