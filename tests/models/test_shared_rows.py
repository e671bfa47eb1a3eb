"""Rows of the residual stream that devices share out: which sums, and what stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.graph import F32, Graph, Tensor, dtype_by_name
from gguflow.engine.model import Model
from gguflow.engine.plan_key import step_key
from gguflow.engine.variants.parallel.rows import share_rows

M, D = 12, 64


def layers(
    g: Graph, n_devices: int, n_sums: int, between: Callable[[Tensor, str], Tensor] | None = None
) -> list[list[Tensor]]:
    """A residual on every device, and sums on it; between two of them a norm that `between` reads.
    Returns the normed values, by sum and device."""
    make = between or (lambda t, name: g.neg(t, name=name))
    x = [g.input(f"x@{k}", F32, (M, D)) for k in range(n_devices)]
    w = g.weight("w", F32, (D,))
    normed = []
    for i in range(n_sums):
        parts = [make(t, f"p{i}@{k}") for k, t in enumerate(normed[-1] if normed else x)]
        totals = [g.op("all_reduce", *parts, name=f"t{i}@{k}") for k in range(n_devices)]
        x = [g.add(t, r, name=f"a{i}@{k}") for k, (t, r) in enumerate(zip(totals, x, strict=True))]
        norms = [g.rms_norm(t, eps=1e-5, name=f"n{i}@{k}") for k, t in enumerate(x)]
        normed.append([g.mul(t, w, name=f"h{i}@{k}") for k, t in enumerate(norms)])
    for t in normed[-1]:
        g.output(t)
    return normed


def ops(g: Graph) -> list[str]:
    return [n.op or "" for n in g.nodes if "reduce" in (n.op or "")]


@pytest.mark.parametrize("n", [2, 3])
def test_sums_that_follow_each_other_are_shared_out(n: int) -> None:
    g = Graph()
    layers(g, n, 4)
    share_rows(g, n, lambda m, d, floats: True)
    assert ops(g) == ["all_reduce_norm"] * 4 * n
    with_norm = [t.srcs[0] is not None for t in g.nodes if t.op == "all_reduce_norm"]
    assert with_norm == [True] * 3 * n + [False] * n
    assert sum(t.op == "rms_norm" for t in g.nodes) == n  # behind the last one


def test_sums_of_other_sizes_stay() -> None:
    g = Graph()
    layers(g, 2, 4)
    share_rows(g, 2, lambda m, d, floats: m > M)
    assert ops(g) == ["all_reduce"] * 8


@pytest.mark.parametrize("dtype, floats", [("f16", True), ("bf16", True), ("q8_0", False)])
def test_what_reads_the_norms_is_known(dtype: str, floats: bool) -> None:
    g = Graph()

    def product(t: Tensor, name: str) -> Tensor:
        return g.mul_mat(g.weight(f"w.{name}", dtype_by_name(dtype), (D, D)), t, name=name)

    layers(g, 2, 3, product)
    seen: list[bool] = []

    def takes(m: int, d: int, of_floats: bool) -> bool:
        seen.append(of_floats)
        return False

    share_rows(g, 2, takes)
    assert seen == [floats, floats, False]  # the last ones are looked at


def test_a_sum_by_itself_stays() -> None:
    g = Graph()
    layers(g, 2, 1)
    share_rows(g, 2, lambda m, d, floats: True)
    assert ops(g) == ["all_reduce"] * 2


def test_norms_and_sums_that_are_looked_at_end_a_stretch() -> None:
    for look_at in ("h", "a"):
        g = Graph()
        normed = layers(g, 2, 4)
        shown = normed[1][0]
        if look_at == "a":
            (norm, _) = shown.live_srcs()
            (shown,) = norm.live_srcs()
        g.output(g.reshape(shown, (M * D,)))
        share_rows(g, 2, lambda m, d, floats: True)
        # Two stretches of two sums, each with its last one whole.
        assert ops(g) == ["all_reduce_norm"] * 8
        with_norm = [t.srcs[0] is not None for t in g.nodes if t.op == "all_reduce_norm"]
        assert with_norm == [True, True, False, False] * 2


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_logits_are_those_of_whole_sums(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0, n_layer=4, n_head=8, n_head_kv=8, n_ff=64)
    names = tuple(f"simulated:{k}" for k in range(n))

    def logits() -> tuple[np.ndarray, int]:
        model = Model.load(path, backends=("numpy",), devices=names, split_mode="tensor")
        plan = model.plan(step_key(20, "all", False))
        shared = sum(t.op == "all_reduce_norm" for t in plan.nodes)
        return model.logits([3 + i for i in range(20)]), shared

    found, shared = logits()
    assert shared == 8 * n
    monkeypatch.setattr("gguflow.engine.backends.simulated._shares_rows", lambda *given: False)
    expected, shared = logits()
    assert shared == 0 and np.array_equal(found, expected)
