"""Layers whose attention and feed-forward part stand side by side, a token at a time: LayerNorm and
what reads it as one launch, and both products that end the layer as another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import nmse
from kernel_list import EQUAL, calls_of, parallel_graph, weight_of
from sizes import fewer
from test_expert_router import Places, entry

from gguflow.engine.backends.numpy import evaluate, read
from gguflow.engine.graph import F32, Graph, Tensor, dtype_by_name
from gguflow.engine.quants import encode
from gguflow.kernels.cuda import launch
from gguflow.kernels.cuda.launch import Launch, joined, launches, supports

F16 = dtype_by_name("f16")
ONE = "mul_mat_parallel<PARALLEL_ERF, block_q4_0>"
OTHER = "mul_mat_vec<PARALLEL_ERF, block_q4_K, block_q6_K, 1>"


def feeds_of(g: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Storage of every leaf. What pads a weight's rows shows in a result if a kernel reads it."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for name, t in g.leaves.items():
        if t.dtype.is_integer:  # position and row 3, sequence and page 0
            found[name] = np.full(t.shape, 3 * (name in ("pos", "rows")), t.dtype.storage)
            continue
        v = rng.standard_normal(t.shape).astype(np.float32)
        if name.startswith("w"):
            used = max(s.shape[1] for n in g.nodes for s in n.live_srcs() if s.owner is t)
            v[:, :used] /= np.sqrt(used)
            v[:, used:] = 300
        elif name == "x":
            v += 2  # a mean that is to be taken away
        found[name] = encode(t.dtype, v)
    return found


def check(gpu: Any, g: Graph, kernels: list[str]) -> None:
    """Results and states are the oracle's, none far from it; kernels: of each node."""
    feeds = feeds_of(g)
    places = Places(gpu, g, feeds)
    program = gpu.lower(g.nodes, places)
    assert [name.partition("<")[0] for name in program.kernels] == kernels
    for _ in range(3):  # launched, captured, replayed
        program.run()
    expected = evaluate(g, {k: v.copy() for k, v in feeds.items()}, [*g.nodes, *states_of(g)])
    for t in (*g.nodes, *states_of(g)):
        raw = places.buffers[t].read(0, t.nbytes)
        found, want = read(t, {t: raw}), expected[t.name]
        assert nmse(found, want) <= (1e-10 if t.op == "layer_norm" else 3e-4), t.name
        assert np.abs(found - want).max() <= 0.08 * np.sqrt((want**2).mean()), t.name


def states_of(g: Graph) -> list[Tensor]:
    return [t for name, t in g.leaves.items() if "_state" in name]


# -- what a layer begins with ----------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
def test_three_ops_are_one_launch(bias: bool) -> None:
    found = joined(calls_of(parallel_graph(bias=bias)))
    assert entry(found) == (3, ONE)
    mixed = parallel_graph(k=512, types=("q4_K", "q6_K"))
    assert entry(joined(calls_of(mixed))) == (3, OTHER)
    assert entry(joined(calls_of(parallel_graph(erf=0)))) == (3, ONE.replace("_ERF", ""))


def test_what_is_not_one() -> None:
    g = parallel_graph()
    made = calls_of(g)
    assert joined(made[:2]) is None and joined([made[0], made[2], made[1]]) is None
    assert joined(calls_of(parallel_graph(m=2))) is None
    assert joined(calls_of(parallel_graph(up="q8_0"))) is None
    assert joined([replace(c, device=EQUAL) for c in made]) is None
    other = calls_of(parallel_graph())
    assert joined([made[0], *other[1:]]) is None  # of another row
    moved = replace(made[0].src(0), address=made[0].src(0).address + 4)
    assert joined([replace(made[0], srcs=(moved, *made[0].srcs[1:])), *made[1:]]) is None


@pytest.mark.parametrize("one, other", [("h", "x"), ("act", "x"), ("q", "x"), ("act", "q"),
                                        ("h", "act")])  # fmt: skip
def test_results_that_share_memory_are_made_one_after_the_other(one: str, other: str) -> None:
    assert joined(calls_of(parallel_graph(), {one: 64, other: 64})) is None
    assert joined(calls_of(parallel_graph(), {one: 1 << 20, other: 2 << 20})) is not None


@pytest.mark.gpu
@pytest.mark.parametrize(
    "k, n_ff, heads, types, state, mode",
    [
        (4544, 18176, 71, ("q4_0",) * 2, "f16", "neox"), (64, 2, 1, ("q4_0",) * 2, "f32", "neox"),
        (576, 66, 3, ("q8_0",) * 2, "f32", "norm"), (192, 31, 2, ("f16",) * 2, "f32", "neox"),
        (2560, 1000, 5, ("q4_K", "q6_K"), "f16", "neox"),
        (1088, 333, 6, ("bf16", "bf16"), "f16", "norm"),
        (9280, 301, 3, ("q5_0", "q4_0"), "f32", "neox"),  # more than threads keep of a row
        (9280, 301, 3, ("q4_0",) * 2, "f32", "neox"), (1088, 333, 6, ("q4_0",) * 2, "f16", "norm"),
        (2048, 5000, 5, ("q4_0",) * 2, "f16", "neox"), (2112, 700, 1, ("q4_0",) * 2, "f32", "norm"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("erf, bias", [(1, True), (0, False)])
def test_a_layer_begins(gpu: Any, k: int, n_ff: int, heads: int, types: tuple[str, str], state: str,
                        mode: str, erf: int, bias: bool) -> None:  # fmt: skip
    g = parallel_graph(1, k, n_ff, heads, types, erf=erf, bias=bias, state=state, mode=mode)
    even = set(types) == {"q4_0"}
    check(gpu, g, ["mul_mat_parallel" if even else "mul_mat_vec", "", ""])


# -- what it ends with -----------------------------------------------------------------------------


def ends(n: int, ks: tuple[int, int], types: tuple[str, str], biases: str = "") -> Graph:
    """mul_mat_two_add, with biases of the products that `biases` names."""
    g = Graph()
    operands: list[Tensor | None] = []
    for i, (k, t) in enumerate(zip(ks, types, strict=True)):
        operands += [weight_of(g, f"w{i}", n, k, t), g.input(f"y{i}", F32, (1, k))]
    given = [g.weight(f"b{i}", F32, (n,)) if str(i) in biases else None for i in range(2)]
    g.op("mul_mat_two_add", *operands, g.input("r", F32, (1, n)), *given, name="out")
    return g


def test_both_products_are_one_launch() -> None:
    (call,) = calls_of(ends(4544, (4544, 18176), ("q4_0", "q4_0")))
    (made,) = launches(call)
    assert (made.kernel.source, made.grid) == ("mul_mat_two.cu", (132, 1, 1))
    assert supports(call.node) and not supports(call.node, equal_bits=True)
    for other in (("f16", "q4_0"), ("f32", "f32")):
        assert not supports(ends(64, (512, 512), other).nodes[0])
    assert not supports(ends(64, (512, 80_000), ("q4_0", "q4_0")).nodes[0])  # no room for a column


def test_a_layers_first_blocks_have_room_beside_the_last_ones_of_the_layer_before() -> None:
    found = joined(calls_of(parallel_graph(k=4544, n_ff=18176, heads=71)))
    assert found is not None
    (begins,) = found[0]
    (end,) = launches(calls_of(ends(4544, (4544, 18176), ("q4_0", "q4_0")))[0])
    assert isinstance(end, Launch)
    of_each = 2 << 10  # what the device and the kernel itself take
    assert begins.shared + end.shared + 2 * of_each <= 228 << 10


@pytest.mark.gpu
@pytest.mark.parametrize(
    "n, ks, types",
    [
        (4544, (4544, 18176), ("q4_0", "q4_0")), (1, (64, 64), ("q4_0", "q8_0")),
        (263, (64, 4544), ("q8_0", "q4_0")), (265, (4544, 64), ("q4_0", "q4_0")),
        (1001, (2560, 10240), ("q4_K", "q6_K")), (5000, (2048, 2112), ("q5_0", "q4_0")),
        (70, (192, 576), ("f16", "f16")), (4097, (1088, 4352), ("bf16", "bf16")),
        (333, (512, 2560), ("q2_K", "q3_K")), (40_001, (256, 512), ("q4_0", "q4_0")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("biases", ["", "0", "01"])
def test_a_layer_ends(gpu: Any, n: int, ks: tuple[int, int], types: tuple[str, str],
                      biases: str) -> None:  # fmt: skip
    check(gpu, ends(n, ks, types, biases), ["mul_mat_two"])


# -- whole layers ----------------------------------------------------------------------------------


def test_attention_runs_beside_what_does_not_read_it() -> None:
    made = calls_of(parallel_graph(n_ff=128, layers=2))
    found = joined(made[3:])
    assert found is not None and len(found) == 2
    entries = [x.kernel.entry for op in found for x in op]
    assert entries == [
        "attention_decode<f16, f16, 64, 1, true>",
        "mul_mat_two<block_q4_0, block_q4_0>",
    ]
    assert found[1][0].args != launches(made[4])[0].args
    assert joined(made[3:4]) is None and joined([made[3], made[4 + 5]]) is None
    assert (
        joined(calls_of(parallel_graph(n_ff=128, layers=1, state="f32"))[3:]) is None
    )  # by attention.cu


@pytest.mark.gpu
@pytest.mark.parametrize("k, n_ff, heads, types", [(576, 1024, 3, ("q4_0", "q4_0")),
                                                   (1152, 9216, 18, ("q8_0", "q4_0"))])  # fmt: skip
def test_layers_after_each_other(gpu: Any, monkeypatch: pytest.MonkeyPatch, k: int, n_ff: int,
                                 heads: int, types: tuple[str, str]) -> None:  # fmt: skip
    """The oracle's results, and the same bits whether or not anything runs beside attention."""
    layers = fewer(2, 8)
    g = parallel_graph(1, k, n_ff, heads, types, layers=layers)
    begin = "mul_mat_parallel" if set(types) == {"q4_0"} else "mul_mat_vec"
    one = [begin, "", "", "attention_decode", "mul_mat_two"]
    feeds = feeds_of(g)
    last, found = g.nodes[-1], []
    for beside in (True, False):
        places = Places(gpu, g, feeds)
        program = gpu.lower(g.nodes, places)
        assert [name.partition("<")[0] for name in program.kernels] == one * layers
        assert program.kernels[3].endswith(", true>") is beside
        for _ in range(fewer(3, 50)):
            places.buffers[last].write(0, np.zeros(last.nbytes, np.uint8))
            program.run()
            found.append(places.value(last))
        monkeypatch.setitem(launch._joints, "attention", [])
    assert len({v.tobytes() for v in found}) == 1
    want = evaluate(g, {n: v.copy() for n, v in feeds.items()}, [last])[last.name]
    assert nmse(found[0], want) <= 2e-3
