"""What holds for every specification: parameter blocks, costs, in-place rules, the table."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from harness import declare_case, in_place_sources

from gguflow.engine.graph import F16, F32, I32, Graph, OpSpec, all_ops, dtype_by_name, op_spec
from gguflow.engine.ops.__main__ import kernels, table

SPECS = [pytest.param(s, id=s.name) for s in all_ops()]


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_is_whole(spec: OpSpec) -> None:
    assert spec.doc and spec.operands and spec.cost
    cases = list(spec.cases())
    assert len(cases) >= 5
    sizes = {n for c in cases for s in c.srcs if s is not None for n in s.shape}
    assert sizes & {31, 172, 64, 96}, "no odd or large size"
    assert all(name in {s.name for s in all_ops()} for name in spec.fused_from)


@pytest.mark.parametrize("spec", SPECS)
def test_costs_are_positive_and_count_the_result(spec: OpSpec) -> None:
    for case in spec.cases():
        node = declare_case(spec, case)
        assert spec.flops(node) >= 0
        if spec.writes_into is None:
            assert spec.bytes(node) >= node.nbytes


@pytest.mark.parametrize("spec", [p for p in SPECS if p.values[0].in_place])
def test_in_place_rules_apply_to_some_case(spec: OpSpec) -> None:
    assert any(in_place_sources(declare_case(spec, case)) for case in spec.cases())


def test_parameter_blocks_are_c_structs() -> None:
    def pack(op: str, **params: Any) -> bytes:
        return op_spec(op).pack_params(op_spec(op).bind_params(params))

    assert pack("rope", n_dims=64, mode="2d", freq_base=5e5) == struct.pack(
        "<3i6fi", 64, 2, 0, 5e5, 1, 0, 1, 32, 1, 1
    )
    assert pack("attention", scale=0.5, window=7) == struct.pack("<3f2i", 0.5, 0, 0, 7, 0)
    assert pack("cpy", type=8) == struct.pack("<i", 8)
    assert pack("repeat", r1=3) == struct.pack("<4i", 1, 3, 1, 1)
    assert pack("silu") == b""


def test_cost_of_mul_mat() -> None:
    g = Graph()
    w = g.weight("w", dtype_by_name("q4_0"), (10, 64))
    x = g.input("x", F32, (3, 64))
    spec = op_spec("mul_mat")
    node = g.mul_mat(w, x)
    assert spec.flops(node) == 2 * 3 * 10 * 64
    assert spec.bytes(node) == 10 * 2 * 18 + 3 * 64 * 4 + 3 * 10 * 4


def test_rows_cost_only_what_is_touched() -> None:
    g = Graph()
    table_ = g.weight("w", F16, (1000, 8))
    ids, x = g.input("ids", I32, (2,)), g.input("x", F32, (2, 8))
    assert op_spec("get_rows").bytes(g.get_rows(table_, ids)) == 2 * 4 + 2 * 8 * (2 + 4)
    state = g.state("s", F16, (1000, 8))
    assert op_spec("set_rows").bytes(g.set_rows(state, x, ids)) == 2 * 4 + 2 * 8 * (2 + 4)


def test_attention_costs_what_it_reads() -> None:
    g = Graph()
    q, pos, seq = g.input("q", F32, (2, 4, 8)), *(g.input(t, I32, (2,)) for t in ("pos", "seq"))
    k, v = g.state("k", F16, (128, 2, 8)), g.state("v", F16, (128, 2, 16))
    where = pos, seq, g.input("table", I32, (1, 2))
    spec = op_spec("attention")
    node = g.attention(q, k, v, *where, scale=1.0)
    io = 2 * 4 * 8 * 4 + 2 * 4 * 16 * 4 + 3 * 2 * 4
    row = 2 * (8 + 16) * 2  # one position of k and v
    per_pair = 4 * (2 * 8 + 2 * 16 + 6)
    # Tokens at positions 5 and 6 see 6 and 7 keys, and read 7 rows.
    assert spec.cost_at(node, 5) == (io + 7 * row, 13 * per_pair)
    assert spec.cost_at(node, 126) == (spec.bytes(node), spec.flops(node))
    assert spec.bytes(node) == io + 128 * row
    windowed = g.attention(q, k, v, *where, scale=1.0, window=3)
    assert spec.cost_at(windowed, 5) == (io + 4 * row, 6 * per_pair)
    assert spec.cost_at(windowed, 0) == (io + 2 * row, 3 * per_pair)
    alone = g.attention(q, k, v, *where, scale=1.0, n_single=2)  # each after 5 of its own
    assert spec.cost_at(alone, 4) == (io + 12 * row, 12 * per_pair)


def test_the_table_in_the_docs_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "ops.md"
    assert page.read_text(encoding="utf-8") == table(kernels()), (
        "run: python -m gguflow.engine.ops --write docs/ops.md"
    )
