"""Pruning, placement, splitting and the plan, with made-up backends: no device is needed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

import gguflow.engine.ops  # noqa: F401
from gguflow.engine.compile import (
    PlacementError,
    PlacementRules,
    PlanOptions,
    compile_graph,
    listing,
    place,
    summary,
)
from gguflow.engine.graph import F16, F32, I32, Graph, Tensor


class Fake:
    """A backend that runs every op but those it lacks."""

    memory = None

    def __init__(self, name: str, space: str, lacks: Iterable[str] = ()) -> None:
        self.name, self.space, self.lacks = name, space, set(lacks)

    def supports(self, node: Tensor) -> bool:
        return node.op not in self.lacks


def two_layers() -> Graph:
    g = Graph()
    x = g.input("x", F32, (2, 8))
    for i in range(2):
        with g.scope(f"blk.{i}"):
            x = g.mul_mat(g.weight(f"blk.{i}.w", F32, (8, 8)), x, name="mm")
            x = g.tanh(x, name="act")
    g.output(x)
    return g


def plan(g: Graph, *backends: Fake, overrides: tuple[tuple[str, str], ...] = ()):  # type: ignore[no-untyped-def]
    return compile_graph(g, PlanOptions(PlacementRules(backends, overrides)))


def test_unused_nodes_are_pruned_and_state_writes_are_not() -> None:
    g = Graph()
    x = g.input("x", F32, (2, 8))
    ids = g.input("ids", I32, (2,))
    g.set_rows(g.state("kv", F16, (4, 8)), g.tanh(x, name="used"), ids, name="write")
    g.exp(x, name="unused")
    p = plan(g, Fake("a", "host"))
    assert [n.name for n in p.nodes] == ["used", "write"]


def test_one_backend_is_one_segment() -> None:
    p = plan(two_layers(), Fake("a", "host"))
    assert [s.backend for s in p.segments] == ["a"]
    assert p.segments[0].copies == []


def test_override_moves_a_weight_and_the_work_with_it() -> None:
    p = plan(two_layers(), Fake("a", "host"), Fake("b", "dev"), overrides=((r"blk\.1\.w", "b"),))
    assert [(s.backend, [n.name for n in s.nodes]) for s in p.segments] == [
        ("a", ["blk.0.mm", "blk.0.act"]),
        ("b", ["blk.1.mm", "blk.1.act"]),
    ]
    copy = p.segments[1].copies[0]
    assert (copy.owner.name, copy.source, copy.target) == ("blk.0.act", "host", "dev")
    assert p.bytes_by_space()["dev"].weights == 256
    assert p.bytes_by_space()["host"].weights == 256


def test_an_override_is_found_anywhere_in_the_name_of_a_leaf_or_a_node() -> None:
    g = Graph()
    h = g.mul_mat(g.weight("blk.0.up.weight", F32, (8, 4)), g.input("x", F32, (1, 4)), name="up")
    g.output(g.relu(h, name="blk.0.act"))

    def placed(pattern: str) -> set[str]:
        order = (Fake("gpu", "gpu:0"), Fake("cpu", "host"))
        of = place(g.nodes, g.leaves, PlacementRules(order, [(pattern, "cpu")])).of
        return {t.name for t, backend in of.items() if backend == "cpu"}

    assert placed("up") == {"blk.0.up.weight", "up", "blk.0.act"}  # what follows up is where it is
    assert placed(r"blk\.0") == {"blk.0.up.weight", "up", "blk.0.act"}
    assert placed("act") == placed("^blk.0.act$") == placed("act$") == {"blk.0.act"}
    assert placed("^act") == placed("^blk.0$") == set()


def test_backends_in_one_space_need_no_copies() -> None:
    p = plan(two_layers(), Fake("a", "host", lacks=["tanh"]), Fake("b", "host"))
    assert len(p.segments) == 4
    assert all(not s.copies for s in p.segments)


def test_fallbacks_are_reported() -> None:
    p = plan(two_layers(), Fake("a", "host", lacks=["tanh"]), Fake("b", "host"))
    assert [(n.name, w, got) for n, w, got in p.placement.fallbacks] == [
        ("blk.0.act", "a", "b"), ("blk.1.act", "a", "b"),
    ]  # fmt: skip
    assert "fallback: 2 x tanh run on b, not on a, which has no kernel for it" in summary(p)


def test_op_without_any_kernel_is_an_error_naming_it() -> None:
    with pytest.raises(PlacementError, match=r"blk\.0\.act: no backend runs tanh\(f32\[2, 8\]\)"):
        plan(two_layers(), Fake("a", "host", lacks=["tanh"]))


def test_bad_overrides_are_errors_naming_them() -> None:
    with pytest.raises(PlacementError, match=r"blk=gpu: no such backend; have a"):
        plan(two_layers(), Fake("a", "host"), overrides=(("blk", "gpu"),))
    with pytest.raises(PlacementError, match=r"\(=a: bad pattern"):
        plan(two_layers(), Fake("a", "host"), overrides=(("(", "a"),))


def test_weights_inputs_and_arena_are_counted_exactly() -> None:
    p = plan(two_layers(), Fake("a", "host"))
    b = p.bytes_by_space()["host"]
    assert (b.weights, b.inputs, b.states) == (512, 64, 0)
    # mm -> act in place; the next mm needs its operand while it runs: two buffers of 64 bytes.
    assert b.arena == 128
    assert p.arenas["host"].naive_nbytes == 256


def test_listing_names_every_op() -> None:
    p = plan(two_layers(), Fake("a", "host"))
    text = "\n".join(listing(p))
    assert all(n.name in text for n in p.nodes)
