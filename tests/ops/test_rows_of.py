"""What an op says of rows holds for its reference: the first rows do not depend on those behind."""

from __future__ import annotations

import numpy as np
import pytest
from harness import _values_of_srcs, built_once

from gguflow.engine.graph import OpSpec, all_ops

# The rows are not those of one source, or depend on how many there are (heads, by ALiBi).
MOST = 1 << 18  # elements; larger cases are like others but for their size
NEVER = {"all_reduce_norm", "repeat", "set_rows", "soft_max"}


@pytest.mark.parametrize(
    "spec", [s for s in all_ops() if s.rows_of is not None], ids=lambda s: s.name
)
def test_fewer_rows_give_the_first_rows(spec: OpSpec) -> None:
    checked = 0
    for i, case in enumerate(spec.cases()):
        built = built_once(spec, i)
        node = built.node
        if sum(s.size for s in node.live_srcs()) > MOST:
            continue
        values = _values_of_srcs(built)
        assert spec.rows_of is not None
        source = values[spec.rows_of]
        assert source is not None
        n = source.shape[0]
        own = {*spec.weights} - {*spec.across}
        matrices = any(len(s.shape) > 2 for k, s in enumerate(node.srcs) if k in own and s)
        if n < 2 or node.shape[0] != n or max(source.ndim, len(node.shape)) < 2 or matrices:
            continue
        if node.params.get("mode") == "2d":  # its positions have rows of another kind
            continue
        fewer = []
        for k, v in enumerate(values):
            whole = v is None or k in (*spec.weights, *spec.across) or v.shape[0] != n
            alike = v is not None and (v.ndim == source.ndim or v.dtype.kind == "i")
            fewer.append(v if whole or not alike else v[: n - 1])
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
