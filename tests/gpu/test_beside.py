"""Launches that take more room where they cannot start beside the one before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_cases import EXACT, OPTIONS, case
from harness import build_case, nmse, run_on
from kernel_list import DEVICE, EQUAL, calls_of
from test_attention_plans import planned
from test_next_columns import feeds_of, results

from gguflow.engine.backends.cuda import program
from gguflow.engine.graph import F16, F32, I32, Graph, dtype_by_name, op_spec
from gguflow.kernels.cuda.beside import left_by, with_room
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.kernels.cuda.launch import DeviceInfo, Kernel, Launch, launches

SMALL = Launch(Kernel("a.cu", "a"), (1, 1, 1), (32, 1, 1), b"", 65 << 10)
LARGE = replace(SMALL, shared=130 << 10)
EITHER = replace(SMALL, roomy=LARGE)


def test_room_is_taken_where_the_launch_before_leaves_too_little() -> None:
    most = replace(SMALL, shared=left_by(replace(SMALL, shared=0), DEVICE) - 2 * SMALL.shared // 3)
    more = replace(most, shared=most.shared + 1)
    assert 180 << 10 < most.shared < 190 << 10
    assert with_room([[most], [EITHER, SMALL]], DEVICE) == [[most], [EITHER, SMALL]]
    assert with_room([[SMALL, more], [], [EITHER]], DEVICE) == [[SMALL, more], [], [LARGE]]
    assert with_room([[more, EITHER, EITHER]], DEVICE) == [[more, LARGE, EITHER]]
    assert with_room([[EITHER], [more, SMALL]], DEVICE) == [[EITHER], [more, SMALL]]


def heads_and_attention(dtype: str, pages: int) -> Graph:
    """A token's queries, keys and values of 8B's shape, and attention."""
    g, k, head_dim, rows = Graph(), 4096, 128, 1024
    pos, at, seq = (g.input(name, I32, (1,)) for name in ("pos", "rows", "seq"))
    weights = [g.weight(f"w{i}", dtype_by_name(dtype), (n, k)) for i, n in
               enumerate((k, rows, rows))]  # fmt: skip
    states = [g.state(name, F16, (64 * pages, rows)) for name in "kv"]
    x, norm = g.input("x", F32, (1, k)), g.weight("norm", F32, (k,))
    q = g.op("norm_qkv_rope", x, norm, *weights, pos, at, *states, eps=1e-5, head_dim=head_dim,
             n_dims=head_dim, mode="neox")  # fmt: skip
    cache = [g.reshape(s, (64 * pages, 8, head_dim)) for s in states]
    g.attention(q, *cache, pos, seq, g.input("table", I32, (1, pages)), scale=0.09, n_single=1)
    return g


def entries(g: Graph, device: DeviceInfo = DEVICE) -> list[str]:
    made = [list(launches(replace(c, device=device))) for c in calls_of(g)]
    return [x.kernel.entry for op in with_room(made, device) for x in op if isinstance(x, Launch)]


ONE, TWO = "attention_decode<f16, f16, 128, 1>", "attention_decode<f16, f16, 128, 1, false, 2>"


@pytest.mark.parametrize("device", [DEVICE, EQUAL], ids=["", "equal bits"])
@pytest.mark.parametrize(
    "dtype, pages, entry",
    [
        ("f16", 4, TWO),
        ("q8_0", 64, TWO),
        ("q6_K", 4, TWO),
        ("q5_K", 64, TWO),  # beside whose product there is room for more than half of it
        ("q4_0", 64, ONE),  # for all of it
        ("q4_K", 4, ONE),
        ("f16", 2, ONE),  # never more keys than one ring has
    ],
)
def test_what_attention_has_room_for(
    dtype: str, pages: int, entry: str, device: DeviceInfo
) -> None:
    assert entries(heads_and_attention(dtype, pages), device)[-1] == entry


def test_what_has_no_larger_ring() -> None:
    for hd, state in ((64, "f16"), (256, "f16"), (128, "q8_0")):  # it has two, no room, it has two
        (one,) = planned(1, 4096, (8, 2), hd, state, 1)
        assert one.roomy is None
    (one,) = planned(1, 4096, (8, 2), 96, "bf16", 1)
    assert one.roomy and one.roomy.kernel.entry.endswith("96, 1, false, 2>")
    listed = planned(4, 4096, (8, 2), 128, "f16", 4)
    assert all(x.roomy is None for x in listed)


# -- on a device -----------------------------------------------------------------------------------


def roomy(made: Sequence[Sequence[Launch | Gemm]], device: DeviceInfo) -> list[list[Launch | Gemm]]:
    return [[(isinstance(x, Launch) and x.roomy) or x for x in op] for op in made]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("heads, hd", [((8, 2), 128), ((6, 2), 96), ((20, 1), 128), ((5, 5), 80)])
@pytest.mark.parametrize("past", [0, 127, 128, 255, 300, 511, 512, 1500, 5000])
def test_bits_do_not_depend_on_the_ring(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, past: int, heads: tuple[int, int], hd: int,
    dtype: str,
) -> None:  # fmt: skip
    same = []
    for options in OPTIONS[:: 1 if past in (300, 1500) else 3]:
        c = case([(1, past)], heads, hd, dtype, dirty=True, entries=4, **options)
        built = build_case(op_spec("attention"), c, np.random.default_rng(1))
        monkeypatch.setattr(program, "with_room", with_room)
        usual = run_on(gpu, built)
        monkeypatch.setattr(program, "with_room", roomy)
        found = run_on(gpu, built)
        assert nmse(found, built.expected) <= EXACT[dtype]
        same.append(found.tobytes() == usual.tobytes())
    assert all(same)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
def test_a_layer_begins(gpu: Any, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Behind a product: the same bits as with the small ring, launched, captured and replayed."""
    g = heads_and_attention(dtype, 10)
    feeds = feeds_of(g, 400)
    found, kernels = list[bytes](), list[str]()
    for choice in (with_room, lambda made, device: [list(op) for op in made]):
        monkeypatch.setattr(program, "with_room", choice)
        written, names = results(gpu, g, feeds)
        found.append(written[g.nodes[-1].name])
        kernels.append(names[1])
    assert kernels == [TWO, ONE]
    assert found[0] == found[1] and np.isfinite(np.frombuffer(found[0], np.float32)).all()
