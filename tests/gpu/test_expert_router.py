"""Norm, router, choice and shares as one launch: when it is, and its four results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import nmse
from kernel_list import calls_of

import gguflow.engine.ops  # noqa: F401  (registers them)
from gguflow.engine.graph import Graph, Tensor, dtype_by_name, op_spec
from gguflow.kernels.cuda.launch import Launch, joined

CHOICES = {
    "softmax": ({"score": "softmax"}, {"score": "softmax", "norm": 1}),
    "sigmoid": (
        {"score": "sigmoid", "n_group": 4, "n_group_used": 2},
        {"score": "sigmoid", "norm": 1, "scale": 2.5},
    ),
    "chosen": ({"score": "chosen"}, {"score": "chosen"}),
}


def graph(m: int, k: int = 256, n: int = 32, used: int = 4, dtype: str = "f32", *,
          choice: str = "softmax", norm: bool = True, bias: bool = False) -> Graph:  # fmt: skip
    """A router; its nodes in order, of which all are outputs."""
    g = Graph()
    f32 = dtype_by_name("f32")
    x = g.input("x", f32, (m, k))
    if norm:
        x = g.rms_norm_mul(x, g.weight("norm", f32, (k,)), eps=1e-5, name="normed")
    w = g.weight("w", dtype_by_name(dtype), (n, k))
    if bias:
        logits = g.mul_mat_add(w, x, g.weight("bias", f32, (n,)), name="logits")
    else:
        logits = g.mul_mat(w, x, name="logits")
    by, how = CHOICES[choice]
    chosen_by = g.weight("chosen_by", f32, (n,)) if choice == "sigmoid" else None
    ids = g.route(logits, chosen_by, n_used=used, name="ids", **by)
    g.route_weights(logits, ids, name="shares", **how)
    return g


def entry(found: list[list[Launch]] | None) -> tuple[int, str] | None:
    return None if found is None else (len(found), found[0][0].kernel.entry)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("bias", [False, True])
def test_four_ops_are_one_launch(choice: str, bias: bool) -> None:
    found = joined(calls_of(graph(1, choice=choice, bias=bias)))
    assert entry(found) == (4, "router<f32>")
    assert found is not None and found[0][0].grid == (4, 1, 1) and not any(found[1:])
    without = graph(16, dtype="f16", choice=choice, bias=bias, norm=False)
    assert entry(joined(calls_of(without))) == (3, "router<f16>")


def test_what_is_not_one() -> None:
    assert joined(calls_of(graph(17))) is None  # many tokens
    assert joined(calls_of(graph(1, 254))) is None  # rows that are no whole 16 bytes
    assert joined(calls_of(graph(1, dtype="q8_0"))) is None
    assert joined(calls_of(graph(1))[:3]) is None  # without shares
    assert entry(joined(calls_of(graph(1))[2:])) == (2, "route_both")  # without a product
    assert joined(calls_of(graph(1))[3:]) is None
    other = calls_of(graph(1))
    assert joined([other[0], *calls_of(graph(1))[1:]]) is None  # of another row


@pytest.mark.parametrize("one, other", [("logits", "x"), ("normed", "x"), ("ids", "shares"),
                                        ("shares", "logits"), ("ids", "x")])  # fmt: skip
def test_results_that_share_memory_are_made_one_after_the_other(one: str, other: str) -> None:
    assert joined(calls_of(graph(2), {one: 64, other: 64})) is None
    assert joined(calls_of(graph(2), {one: 1 << 20, other: 2 << 20})) is not None


class Places:
    """A buffer for every value."""

    def __init__(self, gpu: Any, g: Graph, feeds: dict[str, np.ndarray]) -> None:
        self.buffers = {}
        for t in (*g.leaves.values(), *g.nodes):
            self.buffers[t] = gpu.alloc(t.nbytes)
            if t.name in feeds:
                self.buffers[t].write(0, feeds[t.name].reshape(-1).view(np.uint8))

    def locate(self, owner: Tensor) -> tuple[Any, int]:
        return self.buffers[owner], 0

    def is_packed(self, owner: Tensor) -> bool:
        return False

    def value(self, t: Tensor) -> np.ndarray:
        kind = np.int32 if t.dtype.is_integer else np.float32
        return self.buffers[t].read(0, t.nbytes).view(kind).reshape(t.shape)


def feeds_of(g: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng, found = np.random.default_rng(seed), {}
    for name, t in g.leaves.items():
        v = rng.standard_normal(t.shape).astype(np.float32)
        if name == "w":
            v /= np.sqrt(t.shape[-1]) / 2
        if t.dtype.name == "f16":
            v = v.astype(np.float16)
        if t.dtype.name == "bf16":
            v = (v.view(np.uint32) >> 16).astype(np.uint16)
        found[name] = v
    return found


def as_floats(v: np.ndarray) -> np.ndarray:
    if v.dtype == np.uint16:
        return (v.astype(np.uint32) << 16).view(np.float32)
    return v.astype(np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    "m, k, n, used, dtype",
    [
        (1, 2048, 128, 8, "f32"), (1, 2880, 32, 4, "f32"), (3, 2880, 32, 4, "f16"),
        (16, 256, 60, 5, "bf16"), (2, 8, 4, 1, "f32"), (5, 7168, 256, 8, "f32"),
        (7, 4096, 512, 10, "f16"), (70, 256, 128, 8, "f32"), (17, 256, 64, 6, "f16"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("norm", [True, False])
def test_results(gpu: Any, m: int, k: int, n: int, used: int, dtype: str, choice: str,
                 norm: bool) -> None:  # fmt: skip
    if choice == "sigmoid" and n % 4:
        pytest.skip("groups of equal size")
    if choice == "sigmoid" and used > n // 4 * 2:
        used = n // 4 * 2
    g = graph(m, k, n, used, dtype, choice=choice, norm=norm, bias=choice == "chosen")
    feeds = feeds_of(g)
    places = Places(gpu, g, feeds)
    program = gpu.lower(g.nodes, places)
    names = [name.partition("<")[0] for name in program.kernels]
    if m <= 16:
        assert names == ["router", *[""] * (len(g.nodes) - 1)]
    else:
        assert names[-2:] == ["route_both", ""]
    for _ in range(3):  # launched, captured, replayed
        program.run()
    known = {t: as_floats(feeds[name]) for name, t in g.leaves.items()}
    for node in g.nodes:
        spec = op_spec(node.op or "")
        srcs = [None if s is None else known[s] for s in node.srcs]
        expected, found = spec.reference(*srcs, **node.params), places.value(node)
        if node.op == "route":
            assert np.array_equal(found, expected)
        else:
            assert nmse(found, expected) <= 1e-7, node.name
        known[node] = found  # so that equal scores are equal in both


@pytest.mark.gpu
def test_a_token_has_the_same_bits_among_others(gpu: Any) -> None:
    g = graph(16, 2880, 64, 6, "f16")
    feeds = feeds_of(g)
    together = Places(gpu, g, feeds)
    gpu.lower(g.nodes, together).run()
    for row in (0, 7, 15):
        one = graph(1, 2880, 64, 6, "f16")
        alone = Places(gpu, one, {**feeds, "x": feeds["x"][row : row + 1]})
        gpu.lower(one.nodes, alone).run()
        for a, b in zip(one.nodes, g.nodes, strict=True):
            assert np.array_equal(alone.value(a)[0], together.value(b)[row]), a.name


def test_rows_begin_at_multiples_of_16_bytes() -> None:
    first, *rest = calls_of(graph(1))
    moved = replace(first.src(0), address=first.src(0).address + 4)
    assert joined([replace(first, srcs=(moved, *first.srcs[1:])), *rest]) is None
