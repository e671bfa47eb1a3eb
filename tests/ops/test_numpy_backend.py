"""The numpy backend: values through views, states updated in place, feeds checked."""

from __future__ import annotations

import numpy as np
import pytest

import gguflow.engine.ops  # noqa: F401  (registers the ops)
from gguflow.engine.backends.base import find_backend
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.backends.numpy import evaluate, run_node
from gguflow.engine.graph import BF16, F16, F32, I32, Graph, Tensor, dtype_by_name
from gguflow.engine.quants import decode, encode


def test_a_chain_through_views() -> None:
    g = Graph()
    x = g.input("x", F32, (4, 6))
    with g.scope("blk.0"):
        part = g.slice(x, 1, 1, 4)  # columns 1 to 3
        turned = g.transpose(part)  # [3, 4]
        y = g.scale(turned, s=10.0, name="y")
        z = g.add(g.reshape(y, (2, 6)), g.slice(g.reshape(x, (24,)), 0, 0, 24, 4), name="z")
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    got = evaluate(g, {"x": values}, ["blk.0.y", z, turned, "x"])
    expected = 10 * values[:, 1:4].T
    np.testing.assert_array_equal(got["blk.0.y"], expected)
    np.testing.assert_array_equal(got["blk.0.z"], expected.reshape(2, 6) + values.reshape(-1)[::4])
    np.testing.assert_array_equal(got[turned.name], values[:, 1:4].T)
    np.testing.assert_array_equal(got["x"], values)


def test_a_slice_of_a_permutation_of_a_slice() -> None:
    g = Graph()
    x = g.input("x", I32, (3, 5, 7))
    a = g.slice(x, 2, 2, 6)
    b = g.permute(a, (2, 0, 1))
    c = g.slice(b, 1, 1, 3)
    got = evaluate(g, {"x": np.arange(105).reshape(3, 5, 7)}, [g.cont(c, name="y")])["y"]
    np.testing.assert_array_equal(
        got, np.arange(105).reshape(3, 5, 7)[:, :, 2:6].transpose(2, 0, 1)[:, 1:3]
    )


@pytest.mark.parametrize("t", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_a_state_is_updated_in_place_and_other_rows_keep_their_bytes(t: str) -> None:
    dtype = dtype_by_name(t)
    rng = np.random.default_rng(0)
    g = Graph()
    state = g.state("cache", dtype, (4, 64))
    x, ids = g.input("x", F32, (1, 64)), g.input("ids", I32, (1,))
    after = g.set_rows(g.slice(state, 1, 32, 64), g.slice(x, 1, 32, 64), ids, name="write")
    g.output(g.get_rows(after, ids, name="read"))

    raw = rng.integers(0, 60, state.nbytes).astype(np.uint8)  # small bytes: finite in every type
    before = raw.copy().reshape(4, -1)
    new = rng.standard_normal((1, 64)).astype(np.float32)
    got = evaluate(g, {"cache": raw, "x": new, "ids": np.array([2])})["read"]

    half = dtype.row_bytes(32)
    written = encode(dtype, new[:, 32:]).reshape(-1).view(np.uint8)
    rows = raw.reshape(4, -1)
    np.testing.assert_array_equal(rows[[0, 1, 3]], before[[0, 1, 3]])
    np.testing.assert_array_equal(rows[2, :half], before[2, :half])
    np.testing.assert_array_equal(rows[2, half:], written)
    np.testing.assert_array_equal(got, decode(dtype, written, (1, 32)))


def test_a_state_left_out_starts_as_zeros() -> None:
    g = Graph()
    y = g.exp(g.state("s", F16, (2, 3)))
    np.testing.assert_array_equal(evaluate(g, {}, [y])[y.name], np.ones((2, 3)))


def test_feeds_in_storage_form_or_as_values() -> None:
    g = Graph()
    w = g.weight("w", BF16, (2, 2))
    y = g.neg(w, name="y")
    values = np.float32([[1, -2], [0.5, 3]])
    for feed in (values, encode(BF16, values), encode(BF16, values).view(np.uint8)):
        np.testing.assert_array_equal(evaluate(g, {"w": feed}, [y])["y"], -values)


def test_feeds_that_do_not_fit() -> None:
    g = Graph()
    x, s = g.input("x", F32, (2, 3)), g.state("s", F16, (2, 3))
    g.neg(x), g.neg(s)
    ok = np.zeros((2, 3), np.float32)
    with pytest.raises(KeyError, match="no value for input x"):
        evaluate(g, {})
    with pytest.raises(KeyError, match="no leaf called y"):
        evaluate(g, {"x": ok, "y": ok})
    with pytest.raises(ValueError, match=r"x: value of shape \(3, 2\) for \[2, 3\]"):
        evaluate(g, {"x": np.zeros((3, 2))})
    with pytest.raises(ValueError, match="s: a state is updated in place"):
        evaluate(g, {"x": ok, "s": ok})


def test_a_window_beyond_its_buffer_is_an_error() -> None:
    g = Graph()
    x = g.input("x", F32, (4,))
    y = g.neg(x)
    with pytest.raises(ValueError, match="x: outside the 12 bytes of x"):
        run_node(y, {x: np.zeros(12, np.uint8), y: np.zeros(16, np.uint8)})


class OneBuffer:
    """All owners in one buffer, one after the other."""

    def __init__(self, owners: list[Tensor]) -> None:
        self.offsets, end = {}, 8
        self.rows: dict[Tensor, str] = {}
        for t in owners:
            self.offsets[t] = end
            end += t.nbytes
        self.buffer = HostBuffer.zeros(end)

    def locate(self, owner: Tensor) -> tuple[HostBuffer, int]:
        return self.buffer, self.offsets[owner]

    def is_packed(self, owner: Tensor) -> bool:
        return False


def test_as_a_backend() -> None:
    backend = find_backend("numpy")
    g = Graph()
    x = g.input("x", F32, (3,))
    a = g.neg(x)
    b = g.scale(a, s=2.0)
    assert backend.supports(b) and not backend.supports(x)
    memory = OneBuffer([x, a, b])
    where = memory.buffer.array[8:20].view(np.float32)
    where[:] = [1, 2, 3]
    program = backend.lower([a, b], memory)
    clock = program.run_timed().ns
    np.testing.assert_array_equal(memory.buffer.array[32:44].view(np.float32), [-2, -4, -6])
    assert (np.diff(clock) > 0).all() and len(program.kernels) == 2
