"""Attention and products of a few columns that leave their results rounded for the product behind
them: the bits of ops by themselves, whose columns another launch rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_list import DEVICE, EQUAL, calls_of, few_rows_graph
from sizes import fewer
from test_expert_router import Places

from gguflow.engine.graph import Graph, Tensor
from gguflow.engine.quants import encode
from gguflow.kernels.cuda import launch, mul_mat_few, mul_mat_next
from gguflow.kernels.cuda.launch import DeviceInfo, joined, scratch_bytes

SCRATCH = 1 << 44
LEAVES = ", true>"  # of mul_mat_few<.., NEXT>


def made_by(g: Graph, first: int = 0, device: DeviceInfo = DEVICE) -> list[list[str]] | None:
    """Sources of what the ops from one on are together."""
    calls = [replace(c, device=device, scratch=SCRATCH) for c in calls_of(g)]
    found = joined(calls[first:])
    return None if found is None else [[x.kernel.source for x in op] for op in found]


FEW, ATTENTION = ["mul_mat_few.cu"], ["attention_decode.cu"]


@pytest.mark.parametrize("device", [DEVICE, EQUAL])
@pytest.mark.parametrize("m", [2, 8])
def test_no_launch_rounds_between_two_that_can_do_it(device: DeviceInfo, m: int) -> None:
    g = few_rows_graph(m)
    assert made_by(g, 0, device) == [ATTENTION, FEW, FEW]
    assert made_by(g, 1, device) == [["columns_int8.cu", *FEW], FEW]
    assert made_by(g, 2, device) is None  # gate and up have tiles of 8 results
    assert made_by(g, 3, device) == [["columns_int8.cu", *FEW], FEW]


def test_what_is_not_left() -> None:
    for m in (1, 17):
        assert made_by(few_rows_graph(m)) is None
    for m in (9, 16):  # attention's only
        assert made_by(few_rows_graph(m)) == [ATTENTION, FEW]
        assert made_by(few_rows_graph(m), 3) is None
    small = few_rows_graph(heads=(8, 2))  # 64 tiles: by twos, blocks would have two instead of one
    assert made_by(small) == [ATTENTION, FEW] and made_by(small, 1) is None
    assert made_by(small, 1, DeviceInfo(sm_count=32)) == [["columns_int8.cu", *FEW], FEW]
    heads_of_80 = few_rows_graph(heads=(16, 4), head_dim=80)  # no multiple of 32
    assert made_by(heads_of_80) is None
    assert made_by(few_rows_graph(types=("f16", "f16"))) is None
    calls = calls_of(few_rows_graph())
    moved = replace(calls[1].src(1), address=1 << 50)  # another value than attention's
    other = replace(calls[1], srcs=(calls[1].src(0), moved, calls[1].src(2)))
    assert joined([calls[0], other]) is None
    assert joined(calls[:1]) is None and len(joined(calls[:2]) or []) == 2


@pytest.mark.parametrize("types", [("q4_0", "q4_0"), ("q2_K", "q2_K"), ("q4_K", "q6_K")])
@pytest.mark.parametrize("m", [2, 9, 16])
def test_records_are_within_scratch_memory(types: tuple[str, str], m: int) -> None:
    """And none lies where the op that leaves it still reads its own."""
    g = few_rows_graph(m, types, factors=True, pages=64)
    calls = [replace(c, scratch=SCRATCH) for c in calls_of(g)]
    for first in (0, 3) if m < 9 else (0,):
        n = len(joined(calls[first:]) or [])
        assert n == (2 if first or m > 8 else 3)
        end = SCRATCH + max(scratch_bytes(c.node, DEVICE) for c in calls[first : first + n])
        p = None if first == 0 else mul_mat_next._few(calls[first])
        begin = SCRATCH if p is None else mul_mat_few.wanted(p, SCRATCH).end
        given = mul_mat_next._next(calls[first], p, calls[first + 1], begin)
        assert given is not None and begin == given.at.x < given.at.end <= end
        if n == 3:
            p, begin = given.product, given.at.end
            then = mul_mat_next._next(calls[1], p, calls[2], begin)
            assert then is not None and begin == then.at.x and then.at.end <= end


# -- on a device -----------------------------------------------------------------------------------


def feeds_of(g: Graph, first: int) -> dict[str, np.ndarray]:
    """Storage of every leaf; tokens stand at `first` and behind. Weights repeat after 97 rows."""
    rng, found = np.random.default_rng(first), {}
    for name, t in g.leaves.items():
        if t.dtype.is_integer:
            v = np.arange(t.size) + (first if name in ("pos", "rows") else 0)
            found[name] = (v * (name != "seq")).astype(np.int32).reshape(t.shape)
            continue
        rows = min(97, t.shape[0]) if len(t.shape) == 2 and t.dtype.is_quantized else t.shape[0]
        v = rng.standard_normal((rows, *t.shape[1:])).astype(np.float32)
        if t.dtype.is_quantized:
            v /= np.sqrt(t.shape[1])
        raw = encode(t.dtype, abs(v) + 1 if name == "factors" else v)
        found[name] = np.resize(raw.reshape(rows, -1), (t.shape[0], raw.size // rows))
    return found


def results(
    gpu: Any, g: Graph, feeds: dict[str, np.ndarray], order: Sequence[Tensor] = (),
    compact: bool = True,
) -> tuple[dict[str, bytes], list[str]]:  # fmt: skip
    """order: of the nodes, or some of them. compact: weights lie in their second form too."""
    places, nodes = Places(gpu, g, feeds), order or g.nodes
    read = [w for w in g.leaves.values() if compact and gpu.compactor.bytes_of(w, nodes)]
    if read:
        gpu.compactor.make([(w, nodes, places.buffers[w]) for w in read])
    program = gpu.lower(nodes, places)
    for _ in range(3):  # launched, captured, replayed
        for t in nodes:
            places.buffers[t].write(0, np.full(t.nbytes, 255, np.uint8))
        program.run()
    written: list[Tensor] = [*nodes, *(t for n, t in g.leaves.items() if n.endswith("_next"))]
    return {t.name: places.buffers[t].read(0, t.nbytes).tobytes() for t in written}, program.kernels


def are_the_same(found: dict[str, bytes], apart: dict[str, bytes]) -> None:
    for name, value in apart.items():
        kind = np.float16 if "_next" in name else np.float32
        assert np.isfinite(np.frombuffer(value, kind)).all(), name
        assert found[name] == value, name


@pytest.mark.gpu
@pytest.mark.parametrize(
    "types", [("q4_0", "q4_0"), ("q8_0", "q8_0"), ("q4_K", "q6_K"), ("q2_K", "q2_K")]
)
@pytest.mark.parametrize(
    "m, first", [(2, 0), (3, 500), (4, 2000), (5, 120), (8, 511), (9, 600), (16, 1100)]
)
def test_bits_are_those_of_ops_apart(gpu: Any, monkeypatch: pytest.MonkeyPatch, m: int, first: int,
                                     types: tuple[str, str]) -> None:  # fmt: skip
    if gpu.device.info.sm_count < 128 or not gpu.device.info.is_hopper:
        pytest.skip("another number of tiles a block")
    g = few_rows_graph(m, types, pages=40, factors=m % 2 == 0, norm=m != 5, n_ff=fewer(1024, 9216))
    feeds = feeds_of(g, first)
    found, kernels = results(gpu, g, feeds, compact=False)
    rounds = [i for i, k in enumerate(kernels) if "int8_columns" in k]
    few = m <= 8
    assert rounds == ([3] if few else [2, 3, 4])
    assert [LEAVES in k for k in kernels] == [False, few, False, few, False]
    monkeypatch.setattr(launch, "_joints", {})
    apart, kernels = results(gpu, g, feeds, compact=False)
    assert [i for i, k in enumerate(kernels) if "int8_columns" in k] == [1, 2, 3, 4]
    are_the_same(found, apart)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim, heads", [(64, (64, 8)), (96, (64, 16)), (256, (16, 4))])
def test_heads_of_other_sizes(gpu: Any, monkeypatch: pytest.MonkeyPatch, head_dim: int,
                              heads: tuple[int, int]) -> None:  # fmt: skip
    g = few_rows_graph(6, heads=heads, head_dim=head_dim, pages=40)
    feeds = feeds_of(g, 700)
    found, kernels = results(gpu, g, feeds, compact=False)
    assert "int8_columns" not in kernels[1]
    monkeypatch.setattr(launch, "_joints", {})
    apart, kernels = results(gpu, g, feeds, compact=False)
    assert "int8_columns" in kernels[1] and found == apart
