"""Attention, gate and up that leave their results rounded to 16 bits for the product behind them,
whose weights lie as fragments: the bits of ops by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_list import EQUAL, MANY, calls_of, few_rows_graph, with_fragments
from sizes import fewer
from test_next_columns import are_the_same, feeds_of, results

from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import Graph, dtype_by_name
from gguflow.kernels.cuda import launch, next_fragments
from gguflow.kernels.cuda.launch import DeviceInfo, joined, scratch_bytes

SCRATCH = 1 << 44
ATTENTION, FEW = ["attention_decode.cu"], ["mul_mat_fragments_few.cu"]
ROUNDED = ["columns_round.cu", *FEW]


def made_by(g: Graph, first: int = 0, device: DeviceInfo = MANY) -> list[list[str]] | None:
    """Sources of what the ops from one on are together."""
    found = joined(with_fragments(calls_of(g), device, SCRATCH)[first:])
    return None if found is None else [[x.kernel.source for x in op] for op in found]


@pytest.mark.parametrize("m", [2, 5, 16])
def test_no_launch_rounds_between_two_that_can_do_it(m: int) -> None:
    g = few_rows_graph(m)
    assert made_by(g) == [ATTENTION, FEW]
    assert made_by(g, 1) is None  # a norm follows from all of a column
    assert made_by(g, 2) == [ROUNDED, FEW]
    assert made_by(g, 3) is None


def test_what_is_not_left() -> None:
    for m in (1, 17):
        assert made_by(few_rows_graph(m)) is None and made_by(few_rows_graph(m), 2) is None
    assert made_by(few_rows_graph(9), 2, EQUAL) is None
    assert made_by(few_rows_graph(4, ("q2_K", "q2_K"))) is None  # which have no fragments
    heads_of_80 = few_rows_graph(heads=(16, 4), head_dim=80)  # no multiple of 32
    assert made_by(heads_of_80) is None and made_by(heads_of_80, 2) == [ROUNDED, FEW]
    calls = with_fragments(calls_of(few_rows_graph()), MANY, SCRATCH)
    moved = replace(calls[1].src(1), address=1 << 50)  # another value than attention's
    other = replace(calls[1], srcs=(calls[1].src(0), moved, calls[1].src(2)))
    assert joined([calls[0], other]) is None
    assert joined(calls[:1]) is None and len(joined(calls[:2]) or []) == 2


@pytest.mark.parametrize("m", [3, 8, 16])
@pytest.mark.parametrize("dtype", ["q4_0", "q6_K"])
def test_columns_are_within_scratch_memory(
    monkeypatch: pytest.MonkeyPatch, m: int, dtype: str
) -> None:
    """And none lies where the op that leaves it still reads its own, or adds its parts."""
    g = few_rows_graph(m, (dtype, dtype), pages=64, n_ff=14336)
    calls = with_fragments(calls_of(g), MANY, SCRATCH)
    left: list[next_fragments.Left] = []
    place = next_fragments.place

    def seen(then: next_fragments.Left | None) -> bytes:
        if then is not None:
            left.append(then)
        return place(then)

    monkeypatch.setattr(next_fragments, "place", seen)
    for first in (0, 2):
        left.clear()
        found = joined(calls[first:])
        assert found is not None
        [at] = left
        end = SCRATCH + max(scratch_bytes(c.node, MANY) for c in calls[first : first + 2])
        k = calls[first + 1].src(1).ne[0]
        assert at.x >= SCRATCH and at.x + 2 * k * m <= at.largest
        assert at.largest + 4 * m * at.pieces <= at.end <= end
        own = [x for x in found[0] if x.kernel.source == "columns_round.cu"]
        assert bool(own) == (first == 2)
        if own:  # gate's and up's own columns
            assert at.x >= SCRATCH + 2 * 4096 * m


# -- on a device -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(gpu: Any) -> Any:
    if not gpu.device.info.is_hopper:
        pytest.skip("fragments are Hopper's")
    return find_backend("cuda", {"equal_bits": "many"})


def held(gpu: Any, monkeypatch: pytest.MonkeyPatch, g: Graph, feeds: dict[str, np.ndarray]
         ) -> dict[str, bytes]:  # fmt: skip
    found, kernels = results(gpu, g, feeds)
    rounds = [i for i, k in enumerate(kernels) if "round_columns" in k]
    assert rounds == [2, 4]
    assert all("mul_mat_fragments_few<" in k for k in kernels[1:])
    with monkeypatch.context() as patch:
        patch.setattr(launch, "_joints", {})
        apart, kernels = results(gpu, g, feeds)
    rounds = [i for i, k in enumerate(kernels) if "round_columns" in k]
    assert rounds == [1, 2, 3, 4]
    are_the_same(found, apart)
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["q4_0", "q4_K", "q6_K", "q8_0"])
@pytest.mark.parametrize("m, first", [(2, 0), (3, 500), (4, 2000), (8, 511), (9, 600), (16, 1100)])
def test_bits_are_those_of_ops_apart(many: Any, monkeypatch: pytest.MonkeyPatch, m: int, first: int,
                                     dtype: str) -> None:  # fmt: skip
    g = few_rows_graph(m, (dtype, dtype), pages=40, norm=m != 3, n_ff=fewer(1024, 9216))
    held(many, monkeypatch, g, feeds_of(g, first))


@pytest.mark.gpu
@pytest.mark.parametrize("name, size", [
    ("v_state", 1e-4), ("v_state", 5e4), ("up", 1e-5), ("ffn_norm", 1e-4), ("ffn_norm", 1e4),
])  # fmt: skip
@pytest.mark.parametrize("m", [2, 4, 16])
def test_columns_of_any_size(many: Any, monkeypatch: pytest.MonkeyPatch, m: int, name: str,
                             size: float) -> None:  # fmt: skip
    """Those that float16 does not hold are divided by the product behind."""
    for dtype in ("q4_0", "q5_K"):
        g = few_rows_graph(m, (dtype, dtype), pages=40, n_ff=fewer(1024, 9216))
        feeds = feeds_of(g, 300)
        feeds[name] = scaled(g, feeds[name], name, size)
        found = held(many, monkeypatch, g, feeds)
        of = "a" if name == "v_state" else "ff"
        most = abs(np.frombuffer(found[of], np.float32)).max()
        assert most > 32768 or most < 2.0**-8


def scaled(g: Graph, raw: np.ndarray, name: str, size: float) -> np.ndarray:
    """Stored values times `size`: floats, or the scale of each block of a weight."""
    t = g.leaves[name].dtype
    if not t.is_quantized:
        kind = np.float16 if t.name == "f16" else np.float32
        v = raw.reshape(-1).view(kind).astype(np.float32)
        # Of large values their mean has to be large too.
        return ((1 + np.tanh(v) / 8 if size > 1 else v) * size).astype(kind)
    blocks = raw.reshape(-1, t.nbytes).copy()
    n = 2 if t.name == "q5_K" else 1  # a scale, and one of the offsets
    halves = np.ascontiguousarray(blocks[:, : 2 * n]).view(np.float16).astype(np.float32) * size
    blocks[:, : 2 * n] = halves.astype(np.float16).view(np.uint8)
    return blocks


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim, heads", [(64, (64, 8)), (96, (64, 16)), (256, (16, 4))])
@pytest.mark.parametrize("m", [3, 6])
def test_heads_of_other_sizes(many: Any, monkeypatch: pytest.MonkeyPatch, m: int, head_dim: int,
                              heads: tuple[int, int]) -> None:  # fmt: skip
    g = few_rows_graph(m, heads=heads, head_dim=head_dim, pages=40)
    held(many, monkeypatch, g, feeds_of(g, 700))


@pytest.mark.gpu
def test_columns_that_were_there_are_rounded_anew(many: Any) -> None:
    """What two ops leave for each other takes the place of what the one before had rounded."""
    g = few_rows_graph(4)
    weights = [g.weight(f"other{i}", dtype_by_name("q4_0"), (4096, 4096)) for i in range(2)]
    first, second = (g.mul_mat(w, g.leaves["r"], name=f"of_{w.name}") for w in weights)
    feeds = feeds_of(g, 300)
    near, kernels = results(many, g, feeds, [first, second])
    assert ["round_columns" in k for k in kernels] == [True, False]
    attended, output = g.nodes[:2]
    apart, kernels = results(many, g, feeds, [first, attended, output, second])
    assert ["round_columns" in k for k in kernels] == [True, False, False, True]
    for name, value in near.items():
        assert apart[name] == value, name
