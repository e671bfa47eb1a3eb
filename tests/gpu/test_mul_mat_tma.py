"""mul_mat_tma.cu: 16-bit weights times 17 and more columns, in tiles of all shapes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from harness import build_case, declare_case, nmse, run_on
from kernel_list import DEVICE, launches_of

from gguflow.engine.graph import F16, F32, I32, Case, Graph, Operand, Tensor, op_spec
from gguflow.kernels.cuda import mul_mat_batch, mul_mat_tma
from gguflow.kernels.cuda.columns import GLU, PLAIN, QKV, Product, products
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.kernels.cuda.launch import (
    CLUSTERS,
    Call,
    DeviceInfo,
    Launch,
    Rounded,
    launches,
    rounds_to,
    scratch_bytes,
)
from gguflow.kernels.cuda.launch import Operand as DeviceOperand
from gguflow.kernels.cuda.mul_mat_tma import Tiles

EPS = {"eps": 1e-5}
EVERY = [Tiles(groups, parts) for groups in (1, 2) for parts in range(1, 9)]
KERNEL = "mul_mat_tma.cu"


def build(op: str, *srcs: Operand, **params: Any) -> Any:
    return build_case(op_spec(op), Case(srcs, params), np.random.default_rng(0))


def weight(n: int, k: int, dtype: str) -> Operand:
    scaled = lambda rng, s: rng.standard_normal(s) / np.sqrt(k)  # noqa: E731
    return Operand((n, k), dtype, scaled, role="weight")


def norm_of(k: int) -> Operand:
    return Operand((k,), data=lambda rng, s: rng.uniform(0.5, 1.5, s), role="weight")


def heads(
    dtype: str, m: int, mode: str, hd: int, k: int, n_heads: int = 3, make: Any = build
) -> Any:
    """norm_qkv_rope, with some rows that go nowhere. make: or `declared`."""
    rows = (n_heads * hd, hd, hd)
    weights = (weight(n, k, dtype) for n in rows)
    pos = Operand((m,), "i32", lambda rng, shape: rng.integers(0, 4096, shape))
    where = Operand(
        (m,), "i32", lambda rng, shape: rng.permutation(max(300, *shape))[: shape[0]] - 20
    )
    states = (Operand((256, n), "f16", role="state") for n in rows[1:])
    params = {**EPS, "n_dims": hd, "head_dim": hd, "mode": mode}
    return make("norm_qkv_rope", Operand((m, k)), norm_of(k), *weights, pos, where, *states,
                **params)  # fmt: skip


def product_of(node: Any) -> Product:
    srcs = tuple(None if s is None else DeviceOperand.of(s, 0) for s in node.srcs)
    (p,) = products(node, srcs)
    return p


def chosen(n: int, k: int, m: int = 64, op: str = "mul_mat") -> tuple[Tiles, int]:
    """Tiles of F16 weights, and how many blocks that is."""
    w = Operand((n, k), "f16", 0.0, role="weight")
    weights = (w, w) if op == "mul_mat_swiglu" else (w,)
    p = product_of(declare_case(op_spec(op), Case((*weights, Operand((m, k), data=0.0)))))
    tiles = mul_mat_tma.tiles_for(p, DEVICE)
    return tiles, p.tiles(64 * tiles.groups) * tiles.parts


# -- which tiles -----------------------------------------------------------------------------------


def test_there_are_blocks_for_most_multiprocessors() -> None:
    for n, k in ((4096, 4096), (4096, 14336), (4096, 2048), (6144, 4096), (3072, 4096)):
        tiles, blocks = chosen(n, k)
        assert 90 <= blocks <= DEVICE.sm_count, (n, k, tiles)


def test_clusters_run_at_once() -> None:
    """More blocks than that would have to wait for the first to end."""
    for n, k in ((4096, 4096), (4096, 14336), (6144, 4096)):
        tiles, blocks = chosen(n, k)
        assert blocks // tiles.parts <= CLUSTERS[tiles.parts]


def test_k_has_no_parts_where_rows_are_many() -> None:
    assert chosen(14336, 4096, op="mul_mat_swiglu") == (Tiles(2, 1), 112)
    assert chosen(128256, 4096)[0].parts == 1


def test_short_rows_have_no_more_parts_than_tiles() -> None:
    for k in (64, 128, 192):
        assert k >= 64 * chosen(4096, k)[0].parts


# -- what it does not take -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "n, k, m, device, taken",
    [
        (128, 512, 17, DeviceInfo(), True),
        (128, 512, 16, DeviceInfo(), False),
        (128, 512, 128, DeviceInfo(), True),
        (128, 512, 192, DeviceInfo(), True),
        (128, 512, 193, DeviceInfo(), False),
        (127, 512, 64, DeviceInfo(), False),  # rows go by twos
        (128, 544, 64, DeviceInfo(), False),  # tiles have 64 elements of a row
        (128, 512, 64, DeviceInfo("sm_80"), False),
        (128, 512, 64, DeviceInfo("sm_100"), False),  # which has no such products
        (128, 512, 64, DeviceInfo(shared_per_block=99 << 10), False),
        (128, 512, 64, DeviceInfo(equal_bits=True), True),
    ],
)
def test_what_goes_another_way(n: int, k: int, m: int, device: DeviceInfo, taken: bool) -> None:
    node = build("mul_mat", weight(n, k, "f16"), Operand((m, k))).node
    sources = [s.kernel.source for s in launches_of(node, device=device) if isinstance(s, Launch)]
    assert (KERNEL in sources) == taken


def test_turned_heads_whose_halves_are_no_tiles_go_another_way() -> None:
    for hd, mode, taken in ((96, "neox", False), (96, "norm", True), (64, "neox", True)):
        node = heads("f16", 32, mode, hd, 512).node
        made = [s.kernel.source for s in launches_of(node) if isinstance(s, Launch)]
        assert (KERNEL in made) == taken


def test_a_value_is_rounded_once_for_several_products() -> None:
    node = heads("f16", 32, "norm", 64, 512).node
    entries = [s.kernel.entry for s in launches_of(node) if isinstance(s, Launch)]
    assert [e.split("<")[0] for e in entries] == ["round_columns", "mul_mat_tma"]


def test_many_columns_go_another_way_where_a_library_is_faster() -> None:
    w = Operand((128, 64), "f16", 0.0, role="weight")

    def goes(kind: int, m: int) -> bool:
        p = product_of(declare_case(op_spec("mul_mat"), Case((w, Operand((m, 64), data=0.0)))))
        return mul_mat_batch.way(replace(p, kind=kind), DEVICE) is mul_mat_tma

    most = {kind: max(m for m in range(17, 400) if goes(kind, m)) for kind in (PLAIN, GLU, QKV)}
    assert most == {PLAIN: 192, GLU: 256, QKV: 384}
    # Beyond 256, where blocks with that many columns have enough of them.
    assert goes(GLU, 512) and goes(GLU, 440) and not goes(GLU, 600) and not goes(PLAIN, 512)


# -- results ---------------------------------------------------------------------------------------


def with_tiles(monkeypatch: pytest.MonkeyPatch, tiles: Tiles) -> None:
    monkeypatch.setattr(mul_mat_tma, "tiles_for", lambda p, device: tiles)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many columns come here too."""
    monkeypatch.setattr(mul_mat_batch, "TMA", dict.fromkeys((PLAIN, GLU, QKV), 1 << 20))


def check(gpu: Any, built: Any) -> np.ndarray:
    made = launches_of(built.node)
    assert not any(isinstance(s, Gemm) for s in made)
    assert any(s.kernel.source == KERNEL for s in made if isinstance(s, Launch))
    result = run_on(gpu, built)
    assert nmse(result, built.expected) < 5e-5
    return result


@pytest.mark.gpu
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("m", [17, 32, 33, 64, 65, 100, 128, 129, 256, 300, 513])
@pytest.mark.parametrize("tiles", EVERY, ids=lambda t: f"{t.groups}x{t.parts}")
def test_all_tiles(gpu: Any, monkeypatch: pytest.MonkeyPatch, tiles: Tiles, m: int) -> None:
    with_tiles(monkeypatch, tiles)
    n, k = 330, 1088
    w, x, r = weight(n, k, "f16"), Operand((m, k)), Operand((m, n))
    check(gpu, build("mul_mat", w, x))
    check(gpu, build("mul_mat_add", w, x, r))
    check(gpu, build("norm_mul_mat_swiglu", x, norm_of(k), w, weight(n, k, "f16"), **EPS))
    check(gpu, heads("f16", m, "neox", 64, k))


@pytest.mark.gpu
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("m", [17, 64, 128, 200, 400])
def test_ops(gpu: Any, dtype: str, m: int) -> None:
    for n, k in ((2, 64), (130, 576), (4096, 4096), (1024, 14336), (14336, 512)):
        w, x = weight(n, k, dtype), Operand((m, k))
        check(gpu, build("mul_mat", w, x))
        check(gpu, build("mul_mat_add", w, x, Operand((n,))))
        check(gpu, build("mul_mat_swiglu", w, weight(n, k, dtype), x))
        check(gpu, build("norm_mul_mat", x, norm_of(k), w, **EPS))
    odd = weight(333, 512, dtype), weight(333, 512, dtype)
    check(gpu, build("mul_mat_swiglu", *odd, Operand((m, 512))))  # pairs are of both matrices


@pytest.mark.gpu
@pytest.mark.parametrize("hd, mode", [(64, "neox"), (128, "neox"), (256, "neox"), (32, "neox"),
                                      (64, "norm"), (80, "norm"), (128, "norm")])  # fmt: skip
def test_heads(gpu: Any, hd: int, mode: str) -> None:
    for m, k in ((17, 512), (64, 4096), (128, 1024)):
        check(gpu, heads("f16", m, mode, hd, k))
        check(gpu, heads("bf16", m, mode, hd, k, n_heads=8))


def test_parts_of_k_do_not_depend_on_the_columns() -> None:
    for n, k in ((4096, 4096), (8192, 28672), (6144, 4096), (128256, 4096), (1024, 512)):
        assert len({chosen(n, k, m)[0] for m in (17, 32, 64, 65, 128)}) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("n, k", [(4096, 4096), (1024, 14336), (330, 1088)])
def test_a_column_has_the_same_bits_among_any_others(gpu: Any, n: int, k: int) -> None:
    rng = np.random.default_rng(4)
    w = Operand((n, k), "f16", rng.standard_normal((n, k)) / np.sqrt(k), role="weight")
    x = rng.standard_normal((128, k)).astype(np.float32)
    whole = check(gpu, build("mul_mat", w, Operand(x.shape, "f32", x)))
    for m in (17, 32, 33, 64, 65, 100):
        some = check(gpu, build("mul_mat", w, Operand((m, k), "f32", x[:m])))
        assert np.array_equal(some, whole[:m]), m


@pytest.mark.gpu
def test_the_same_bits_every_time(gpu: Any) -> None:
    """Parts of k are added in their order."""
    built = build("mul_mat", weight(4096, 4096, "f16"), Operand((64, 4096)))
    results = [check(gpu, built).tobytes() for _ in range(8)]
    assert all(a == b for a, b in pairwise(results))


@pytest.mark.gpu
def test_rows_that_float16_cannot_hold(gpu: Any) -> None:
    factors = np.array([[10.0 ** (i % 13 - 5)] for i in range(40)])
    x = Operand((40, 512), data=lambda rng, s: rng.standard_normal(s) * factors)
    built = build("mul_mat_add", weight(96, 512, "f16"), x, Operand((40, 96)))
    for row, expected in zip(check(gpu, built), built.expected, strict=True):
        assert nmse(row, expected) < 5e-5


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["norm_qkv_rope", "mul_mat_swiglu"])
def test_columns_that_are_rounded_already(gpu: Any, op: str) -> None:
    """As an exchange between GPUs leaves them."""
    m, k, hd, rng = 48, 512, 64, np.random.default_rng(3)
    g = Graph()
    x = g.input("x", F32, (m, k))
    data = {x: rng.standard_normal((m, k)).astype(np.float32)}

    def weights(*rows: int) -> list[Tensor]:
        made = [g.weight(f"w{i}", F16, (n, k)) for i, n in enumerate(rows)]
        data.update({w: rng.standard_normal(w.shape).astype(np.float16) for w in made})
        return made

    states: list[Tensor] = []
    if op == "mul_mat_swiglu":
        node = g.op(op, *weights(256, 256), x)
    else:
        where = g.input("pos", I32, (m,)), g.input("rows", I32, (m,))
        data |= dict.fromkeys(where, rng.permutation(m).astype(np.int32))
        states = [g.state(n, F16, (m, hd)) for n in ("keys", "values")]
        data |= {s: np.zeros(s.shape, np.float16) for s in states}
        node = g.op(op, x, None, *weights(4 * hd, hd, hd), *where, *states, eps=1e-5, head_dim=hd,
                    n_dims=hd, mode="neox")  # fmt: skip
    at = {t: gpu.alloc(t.nbytes) for t in (*data, node)}
    for t, v in data.items():
        at[t].write(0, v)
    info = gpu.device.info
    assert rounds_to(node, info) == "f16"
    scratch = gpu.alloc(scratch_bytes(node, info))
    rounded = gpu.alloc(2 * m * k + 4 * m)
    rounded.write(0, data[x].astype(np.float16))
    rounded.write(2 * m * k, np.ones(m, np.float32))
    ready = Rounded("f16", rounded.address, rounded.address + 2 * m * k)

    def result(ready: Rounded | None) -> bytes:
        srcs = tuple(None if s is None else DeviceOperand.of(s, at[s].address) for s in node.srcs)
        call = Call(
            node, DeviceOperand.of(node, at[node].address), srcs, info, scratch.address, ready
        )
        made = [s for s in launches(call) if isinstance(s, Launch)]
        assert len(made) == (1 if ready else 2)
        for t in (node, *states):
            at[t].write(0, np.zeros(t.nbytes, np.uint8))
        gpu.modules.prepare(s.kernel for s in made)
        for s in made:
            gpu.modules.bind(s).issue()
        gpu.device.synchronize()
        return b"".join(at[t].read(0, t.nbytes).tobytes() for t in (node, *states))

    assert result(ready) == result(None)
