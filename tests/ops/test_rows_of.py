"""What an op says of rows holds for its reference: the first rows do not depend on those behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import _values_of_srcs, built_once, cases_of, declare_case

from gguflow.engine.graph import OpSpec, all_ops

# The rows are not those of one source, or depend on how many there are (heads, by ALiBi).
MOST = 1 << 18  # elements; larger cases are like others but for their size
NEVER = {"all_reduce_norm", "repeat", "set_rows", "soft_max"}


def _said(data: Any) -> str:
    """What an operand's data is made of, the same for those that cases of other types have."""
    if not callable(data):
        return repr(data)
    code = getattr(data, "__code__", data)
    return repr((code, [c.cell_contents for c in getattr(data, "__closure__", None) or ()]))


@pytest.mark.parametrize(
    "spec", [s for s in all_ops() if s.rows_of is not None], ids=lambda s: s.name
)
def test_fewer_rows_give_the_first_rows(spec: OpSpec) -> None:
    checked, seen = 0, set()
    for i, case in enumerate(cases_of(spec)):
        node = declare_case(spec, case)
        if sum(s.size for s in node.live_srcs()) > MOST:
            continue
        assert spec.rows_of is not None
        rows = node.srcs[spec.rows_of]
        assert rows is not None
        n = rows.shape[0]
        own = {*spec.weights} - {*spec.across}
        matrices = any(len(s.shape) > 2 for k, s in enumerate(node.srcs) if k in own and s)
        if n < 2 or node.shape[0] != n or max(len(rows.shape), len(node.shape)) < 2 or matrices:
            continue
        if node.params.get("mode") == "2d":  # its positions have rows of another kind
            continue
        # References take floats: of the same shapes in another type they say the same.
        alike = *(o and (o.shape, _said(o.data)) for o in case.srcs), *sorted(case.params.items())
        if alike in seen:
            continue
        seen.add(alike)
        values = _values_of_srcs(built_once(spec, i))
        source = values[spec.rows_of]
        assert source is not None
        fewer = []
        for k, v in enumerate(values):
            whole = v is None or k in (*spec.weights, *spec.across) or v.shape[0] != n
            by_row = v is not None and (v.ndim == source.ndim or v.dtype.kind == "i")
            fewer.append(v if whole or not by_row else v[: n - 1])
        found = spec.reference(*fewer, **node.params)
        expected = spec.reference(*values, **node.params)[: n - 1]
        assert found.shape == expected.shape, case.note
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=case.note)
        checked += 1
    assert checked or spec.name == "sample"  # of which a case has one row


def test_every_op_of_a_model_says_so() -> None:
    assert {s.name for s in all_ops() if s.rows_of is None} == NEVER
    for s in all_ops():
        # Experts are a matrix each, of which a row reads those that it names.
        of_experts = s.name.startswith("mul_mat_id")
        assert of_experts or not set(s.weights) & set(s.across)
        for k in (*s.weights, s.rows_of or 0):
            assert k < s.n_srcs[1], s.name
