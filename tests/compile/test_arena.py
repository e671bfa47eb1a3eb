"""The memory planner: no two live values share bytes, and reuse is real."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import gguflow.engine.ops  # noqa: F401
from gguflow.engine.compile import ALIGN, plan_memory
from gguflow.engine.graph import F32, Graph, Tensor


def live_ranges(nodes: list[Tensor], outputs: list[Tensor]) -> dict[Tensor, tuple[int, int]]:
    ranges = {n: (i, i) for i, n in enumerate(nodes)}
    for i, n in enumerate(nodes):
        for s in n.live_srcs():
            if s.owner in ranges:
                ranges[s.owner] = (ranges[s.owner][0], i)
    for t in outputs:
        ranges[t.owner] = (ranges[t.owner][0], len(nodes))
    return ranges


def overlapping(nodes: list[Tensor], outputs: list[Tensor]) -> list[tuple[str, str]]:
    """Pairs of values alive together that share bytes, except a value and its in-place operand."""
    plan = plan_memory(nodes, outputs)
    ranges = live_ranges(nodes, outputs)
    bad = []
    for i, a in enumerate(nodes):
        for b in nodes[:i]:
            (a0, a1), (b0, b1) = ranges[a], ranges[b]
            # b read for the last time by the op that makes a may hand its memory over whole.
            if b1 == a0 and plan.offsets[a] == plan.offsets[b] and a.nbytes == b.nbytes:
                continue
            x, y = plan.offsets[a], plan.offsets[b]
            if a0 <= b1 and b0 <= a1 and x < y + b.nbytes and y < x + a.nbytes:
                bad.append((a.name, b.name))
    return bad


@st.composite
def random_graph(draw: st.DrawFn) -> tuple[list[Tensor], list[Tensor]]:
    g = Graph()
    values = [g.input("x0", F32, (4, 8)), g.input("x1", F32, (16, 8))]
    for _ in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from(["relu", "add", "concat", "view"]))
        a = values[draw(st.integers(0, len(values) - 1))]
        if kind == "relu":
            values.append(g.relu(a))
        elif kind == "add":
            b = next(v for v in reversed(values) if v.shape == a.shape)
            values.append(g.add(a, b))
        elif kind == "concat" and a.shape[0] < 256:
            values.append(g.concat(a, a, axis=-2))
        elif kind == "view" and a.op:
            values.append(
                g.reshape(a, a.shape[::-1]) if a.shape[-1] == 8 and a.is_contiguous else a
            )
    # Views reshape the rows away; keep only values whose rows are 8 wide usable as operands.
    nodes = list(g.nodes)
    outputs = [n for n in nodes if draw(st.booleans())][:3] or nodes[-1:]
    return nodes, outputs


@given(random_graph())
@settings(max_examples=150, deadline=None)
def test_live_values_never_share_bytes(graph: tuple[list[Tensor], list[Tensor]]) -> None:
    nodes, outputs = graph
    if nodes:
        assert overlapping(nodes, outputs) == []


def test_chain_is_computed_in_place() -> None:
    g = Graph()
    x = g.input("x", F32, (1000,))
    for _ in range(10):
        x = g.relu(x)
    plan = plan_memory(g.nodes, [x])
    assert plan.nbytes == 4032  # 4000 bytes rounded up to 64: one buffer serves all ten
    assert plan.naive_nbytes == 10 * 4032


def test_operand_needed_later_is_not_overwritten() -> None:
    g = Graph()
    x = g.input("x", F32, (16,))
    a = g.relu(x, name="a")
    b = g.neg(a, name="b")
    c = g.add(a, b, name="c")
    plan = plan_memory(g.nodes, [c])
    assert plan.offsets[a] != plan.offsets[b]


def test_operand_read_through_a_view_is_not_overwritten() -> None:
    g = Graph()
    x = g.input("x", F32, (4, 4))
    a = g.relu(x, name="a")
    t = g.cont(g.transpose(a), name="t")
    b = g.add(a, t, name="b")
    plan = plan_memory(g.nodes, [b])
    assert plan.offsets[a] != plan.offsets[t]
    assert overlapping(list(g.nodes), [b]) == []


def test_outputs_survive_to_the_end() -> None:
    g = Graph()
    x = g.input("x", F32, (64,))
    kept = g.relu(x, name="kept")
    last = g.exp(g.neg(g.abs(kept)), name="last")
    plan = plan_memory(g.nodes, [kept, last])
    others = [plan.offsets[n] for n in g.nodes if n is not kept]
    assert plan.offsets[kept] not in others


def test_offsets_are_aligned() -> None:
    g = Graph()
    x = g.input("x", F32, (3,))
    y = g.input("y", F32, (5,))
    z = g.add(g.relu(x), g.neg(x))
    w = g.relu(y)
    plan = plan_memory(g.nodes, [z, w])
    assert all(o % ALIGN == 0 for o in plan.offsets.values())


def test_a_value_read_from_elsewhere_lasts_as_long_as_asked() -> None:
    g = Graph()
    t = g.input("x", F32, (1, 16))
    for _ in range(6):
        t = g.relu(t)
    made = list(g.nodes)
    assert plan_memory(made, [t]).nbytes == ALIGN  # all in place
    for n in range(1, 6):
        plan = plan_memory(made, [t], {made[0]: n})
        later = [m for m in made[1:] if plan.offsets[m] == plan.offsets[made[0]]]
        assert all(made.index(m) >= n for m in later), n  # whole while the first n nodes run
        assert plan.nbytes == (ALIGN if n == 1 else 2 * ALIGN)
