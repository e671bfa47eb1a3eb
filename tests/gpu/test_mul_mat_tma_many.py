"""mul_mat_tma_many.cu: 16-bit weights times many columns, in tiles of all sizes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from harness import nmse, run_on
from kernel_list import DEVICE, EQUAL, launches_of
from sizes import smaller
from test_equal_floats import Product
from test_mul_mat_columns import declared, weight
from test_mul_mat_columns import heads as mixed_heads
from test_mul_mat_tma import EPS, build, heads, norm_of, product_of

from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import Operand
from gguflow.kernels.cuda import mul_mat_batch, mul_mat_tma, mul_mat_tma_many
from gguflow.kernels.cuda.launch import DeviceInfo, Launch
from gguflow.kernels.cuda.mul_mat_tma_many import Tiles

KERNEL = "mul_mat_tma_many.cu"
EVERY = [Tiles(*t) for t in product((32, 48, 64, 80, 96, 112, 128), (1, 2))]
SOME = [Tiles(32, 2), Tiles(80, 1), Tiles(128, 1), Tiles(128, 2)]


def node_of(n: int, k: int, m: int) -> Any:
    return declared("mul_mat", weight(n, k, "f16"), Operand((m, k)))


def chosen(n: int, k: int, m: int) -> Tiles:
    return mul_mat_tma_many.tiles_for(product_of(node_of(n, k, m)), EQUAL)


# -- which tiles -----------------------------------------------------------------------------------


def test_blocks_fill_a_device_once_where_they_can() -> None:
    for n, m, tiles in (
        (2048, 512, Tiles(64, 2)), (4096, 512, Tiles(128, 2)), (4096, 384, Tiles(96, 2)),
        (4096, 256, Tiles(64, 2)), (2048, 1024, Tiles(128, 2)),
    ):  # fmt: skip
        for k in (4096, 14336):
            assert chosen(n, k, m) == tiles, (n, k, m)
        made = mul_mat_tma_many.launches(product_of(node_of(n, 4096, m)), EQUAL, 0)[-1]
        assert 120 <= made.grid[0] <= DEVICE.sm_count, (n, m)


def test_stages_are_as_many_as_there_is_room_for() -> None:
    for tiles in EVERY:
        p = product_of(node_of(4096, 4096, 512))
        made = mul_mat_tma_many.launches(p, EQUAL, 0, tiles)[-1]
        left = EQUAL.shared_per_block - made.shared
        assert 0 <= left - 1024 < (128 + tiles.columns) * 128 + 16, tiles


@pytest.mark.parametrize(
    "n, k, m, device, taken",
    [
        (4096, 4096, 512, EQUAL, True),
        (4096, 4096, 193, EQUAL, True),
        (4096, 4096, 192, EQUAL, False),  # mul_mat_tma.cu is faster
        (4096, 14336, 256, EQUAL, False),
        (4096, 14336, 257, EQUAL, True),
        (14336, 4096, 257, EQUAL, False),  # which has one part
        (14336, 4096, 512, EQUAL, False),
        (333, 4096, 129, EQUAL, True),  # rows that a library may add in another order
        (333, 4128, 129, EQUAL, False),  # tiles have 64 elements of a row
        (4096, 4096, 512, DEVICE, False),  # a library is faster
        (4096, 4096, 512, DeviceInfo("sm_100", equal_bits=True), False),
    ],
)
def test_what_comes_here(n: int, k: int, m: int, device: DeviceInfo, taken: bool) -> None:
    assert (KERNEL in sources_of(node_of(n, k, m), device)) == taken


@pytest.mark.parametrize("device", [EQUAL, DEVICE])
@pytest.mark.parametrize(
    "rows, k, m, taken",
    [
        (3072, 1024, 65, True),
        (3072, 1024, 64, False),  # mul_mat_tma.cu is faster
        (14336, 4096, 512, False),  # which has one part
    ],
)
def test_gates_that_come_here(rows: int, k: int, m: int, taken: bool, device: DeviceInfo) -> None:
    w, x = weight(rows, k, "f16"), Operand((m, k))
    node = declared("norm_mul_mat_swiglu", x, norm_of(k), w, w, **EPS)
    assert (KERNEL in sources_of(node, device)) == taken
    # Without a norm they may be there, rounded, where bits are not to be equal.
    node = declared("mul_mat_swiglu", w, w, x)
    assert (KERNEL in sources_of(node, device)) == (taken and device.equal_bits)


@pytest.mark.parametrize("device", [EQUAL, DEVICE])
@pytest.mark.parametrize("n_heads, m, taken", [(32, 161, True), (32, 160, False), (96, 512, False)])
def test_heads_that_come_here(n_heads: int, m: int, taken: bool, device: DeviceInfo) -> None:
    node = heads("f16", m, "neox", 128, 4096, n_heads, declared)
    assert (KERNEL in sources_of(node, device)) == taken


def sources_of(node: Any, device: DeviceInfo) -> list[str]:
    made = launches_of(node, device=device)
    return [s.kernel.source for s in made if isinstance(s, Launch)]


def test_a_device_with_less_shared_memory_goes_another_way() -> None:
    p = product_of(node_of(4096, 4096, 512))
    assert mul_mat_tma_many.takes(p, EQUAL)
    assert not mul_mat_tma_many.takes(p, DeviceInfo(shared_per_block=90 << 10))


# -- results ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu(gpu: Any) -> Any:
    """The backend on which k has parts."""
    return find_backend("cuda", {"equal_bits": True})


def go_by(monkeypatch: pytest.MonkeyPatch, tiles: Tiles | None) -> str:
    """Products go to this kernel with these tiles, or to mul_mat_tma.cu; returns which."""
    way = mul_mat_tma if tiles is None else mul_mat_tma_many
    monkeypatch.setattr(mul_mat_batch, "way", lambda p, device: way)
    monkeypatch.setattr(mul_mat_tma_many, "tiles_for", lambda p, device: tiles)
    return way.__name__.split(".")[-1] + ".cu"


def result(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, built: Any, tiles: Tiles | None, right: bool = True
) -> np.ndarray:
    """By this kernel with these tiles, or by mul_mat_tma.cu. right: whether it is held to the
    oracle too."""
    source = go_by(monkeypatch, tiles)
    made = launches_of(built.node, device=EQUAL)
    assert made[-1].kernel.source == source  # type: ignore[union-attr]
    found = run_on(gpu, built)
    assert not right or nmse(found, built.expected) < 5e-5
    return found


def parts_of(n: int, k: int) -> int:
    return mul_mat_tma.parts_of(product_of(node_of(n, k, 8)), EQUAL)


@pytest.mark.gpu
@pytest.mark.parametrize("m", [17, 64, 129, 300, 513])
@pytest.mark.parametrize("tiles", EVERY, ids=lambda t: f"{t.columns}x{t.blocks}")
def test_all_tiles_have_the_bits_of_parts_in_clusters(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tiles: Tiles, m: int
) -> None:
    """More tiles of k than a ring has stages; rows and columns that are no whole tiles; k in parts,
    of which the last is shorter."""
    n, k = 330, 2624
    assert parts_of(n, k) > 1
    w, x = weight(n, k, "f16"), Operand((m, k))
    for built in (build("mul_mat", w, x), build("mul_mat_add", w, x, Operand((m, n)))):
        expected = result(gpu, monkeypatch, built, None)
        assert np.array_equal(result(gpu, monkeypatch, built, tiles), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("tiles", SOME, ids=lambda t: f"{t.columns}x{t.blocks}")
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_ops(gpu: Any, monkeypatch: pytest.MonkeyPatch, dtype: str, tiles: Tiles) -> None:
    for n, k, m in ((2, 64, 17), (130, 576, 150), (1024, smaller(14336), 260), (2048, 2048, 64)):
        w, x = weight(n, k, dtype), Operand((m, k))
        for built in (
            build("mul_mat", w, x),
            build("mul_mat_add", w, x, Operand((n,))),  # the same for all columns
            build("norm_mul_mat", x, norm_of(k), w, **EPS),
        ):
            expected = result(gpu, monkeypatch, built, None)
            assert np.array_equal(result(gpu, monkeypatch, built, tiles), expected), (n, k, m)


@pytest.mark.gpu
@pytest.mark.parametrize("op, rows, mode", [
    ("norm_mul_mat_swiglu", (330, 330), ""), ("norm_qkv_rope", (640, 128, 128), "neox"),
    ("norm_qkv_rope", (384, 256, 128), "norm"),
])  # fmt: skip
@pytest.mark.parametrize("tiles", EVERY, ids=lambda t: f"{t.columns}x{t.blocks}")
def test_pairs_have_the_bits_of_parts_in_clusters(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tiles: Tiles, op: str, rows: tuple[int, ...],
    mode: str,
) -> None:  # fmt: skip
    """Gates and ups, queries, keys and values: what they become too, and states."""
    if op == "norm_mul_mat_swiglu":
        w = weight(rows[0], 2624, "f16")
        node = declared(op, Operand((17, 2624)), norm_of(2624), w, w, **EPS)
    else:
        node = heads("f16", 17, mode, 128, 2624, rows[0] // 128, declared)
    assert mul_mat_tma.parts_of(product_of(node), EQUAL) > 1
    for dtype, k, counts in (("f16", 2624, (17, 129, 300)), ("bf16", 128, (500, 64))):
        made = Product(gpu, op, dtype, rows, k, mode=mode)
        for m in counts:
            go_by(monkeypatch, None)
            expected = made.result(m)
            source = go_by(monkeypatch, tiles)
            found = made.result(m)
            assert made.used[-1] == source == KERNEL
            for a, b in zip(found, expected, strict=True):
                assert np.array_equal(a, b), (dtype, k, m)


@pytest.mark.gpu
@pytest.mark.parametrize("tiles", SOME, ids=lambda t: f"{t.columns}x{t.blocks}")
@pytest.mark.parametrize("hd, mode", [(32, "neox"), (128, "neox"), (256, "neox"), (80, "norm")])
def test_heads_of_other_sizes(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, hd: int, mode: str, tiles: Tiles
) -> None:
    """Turned, and put into rows of states that are there or not."""
    for dtype, m in (("f16", 140), ("bf16", 33)):
        built = heads(dtype, m, mode, hd, 2624, n_heads=5)
        expected = result(gpu, monkeypatch, built, None)
        assert np.array_equal(result(gpu, monkeypatch, built, tiles), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("tiles", [Tiles(64, 2), Tiles(96, 1)])
def test_values_of_a_type_of_their_own(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tiles: Tiles
) -> None:
    """Which are multiplied by themselves, as queries and keys are."""
    built = mixed_heads(("f16", "f16", "bf16"), 130, "f16", "neox", k=1152)
    expected = result(gpu, monkeypatch, built, None)
    assert np.array_equal(result(gpu, monkeypatch, built, tiles), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [2, 24, 40, 63])
def test_gates_of_few_rows(gpu: Any, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Fewer than a tile of them has, in both kernels."""
    built = build("mul_mat_swiglu", *(weight(n, 1024, "f16") for _ in "gu"), Operand((70, 1024)))
    expected = result(gpu, monkeypatch, built, None)
    for tiles in (Tiles(32, 2), Tiles(80, 1)):
        assert np.array_equal(result(gpu, monkeypatch, built, tiles), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("tiles", SOME, ids=lambda t: f"{t.columns}x{t.blocks}")
def test_an_odd_number_of_rows(gpu: Any, monkeypatch: pytest.MonkeyPatch, tiles: Tiles) -> None:
    for n, m in ((1, 17), (127, 140), (333, 200)):
        assert parts_of(n, 640) == 0
        w, x = weight(n, 640, "bf16"), Operand((m, 640))
        result(gpu, monkeypatch, build("mul_mat_add", w, x, Operand((m, n))), tiles)


@pytest.mark.gpu
def test_rows_that_float16_cannot_hold(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    factors = np.array([[10.0 ** (i % 13 - 5)] for i in range(140)])
    x = Operand((140, 512), data=lambda rng, s: rng.standard_normal(s) * factors)
    built = build("mul_mat_add", weight(96, 512, "f16"), x, Operand((140, 96)))
    found = result(gpu, monkeypatch, built, Tiles(64, 2))
    for row, expected in zip(found, built.expected, strict=True):
        assert nmse(row, expected) < 5e-5


@pytest.mark.gpu
@pytest.mark.parametrize("n, k", [(4096, 4096), (2048, 8192)])
def test_shapes_of_models(gpu: Any, monkeypatch: pytest.MonkeyPatch, n: int, k: int) -> None:
    """With more blocks than run at once, twice: no stage is read before it is full or written
    before it is free."""
    k = smaller(k)
    built = build("mul_mat_add", weight(n, k, "f16"), Operand((600, k)), Operand((600, n)))
    expected = result(gpu, monkeypatch, built, None)
    for tiles in (*SOME, *SOME):
        found = result(gpu, monkeypatch, built, tiles, right=False)
        assert np.array_equal(found, expected), tiles
