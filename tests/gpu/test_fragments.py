"""Quantized weights as fragments, from which up to 128 columns have the bits that they have among
others where many are to be fast (`equal_bits="many"`)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_list import EQUAL, MANY
from test_compact import CUDA, Compacted, compacted, launch_of, launches_for, layout_for, put
from tiny_model import write_tiny

from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import Graph, dtype_by_name
from gguflow.engine.model import Model
from gguflow.engine.quants import encode
from gguflow.engine.sampling import SamplerSettings
from gguflow.kernels.cuda.compact import EIGHTS, FRAGMENTS, layouts_of
from gguflow.kernels.cuda.elementwise import cpp_bool
from gguflow.kernels.cuda.fragments import UNIT, fragment_row_bytes
from gguflow.kernels.cuda.launch import DeviceInfo, Launch, Operand
from gguflow.kernels.cuda.tile_fragments import _share

# Bytes of 256 elements: codes, a scale and maybe an offset of every 32 as halves; of Q6_K integers
# of every 16, and the row's scale and offset.
ROW_BYTES = {
    "q4_0": 128 + 16, "q4_1": 128 + 32, "q4_K": 128 + 32, "q5_0": 160 + 16, "q5_1": 160 + 32,
    "q5_K": 160 + 32, "q6_K": 192 + 32 + 4, "q8_0": 256 + 16,
}  # fmt: skip
TYPES = list(ROW_BYTES)
FEW = "mul_mat_fragments_few.cu"
OTHERS = ["q2_K", "q3_K", "iq4_nl"]


@pytest.fixture(scope="module")
def many(gpu: Any) -> Any:
    return find_backend("cuda", {"equal_bits": "many"})


def made_for(dtype: str, device: DeviceInfo = MANY, n: int = 4096, k: int = 4096,
             op: str = "mul_mat", **how: Any) -> Launch:  # fmt: skip
    return launch_of(op, n, k, device, FRAGMENTS, dtype=dtype, **how)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_single_column_reads_them(dtype: str) -> None:
    for op in ("mul_mat", "mul_mat_swiglu"):
        made = made_for(dtype, op=op)
        assert made.kernel.source == "mul_mat_fragments.cu"
        step = fragment_row_bytes(dtype_by_name(dtype), 4096)
        assert step.to_bytes(8, "little") in made.args
        assert made.shared <= MANY.shared_per_block


@pytest.mark.parametrize("dtype", TYPES)
def test_what_does_not(dtype: str) -> None:
    for made in (
        made_for(dtype, EQUAL),  # whose generated rows are int8's
        made_for(dtype, replace(MANY, arch="sm_80")),
        made_for(dtype, m=17),
        made_for(dtype, compact=0),
        made_for(dtype, n=4100),
        made_for(dtype, op="mul_mat_swiglu", compact=1),
        launch_of("mul_mat", 4096, 4096, MANY, EIGHTS, dtype=dtype),
    ):
        assert made.kernel.source not in ("mul_mat_fragments.cu", FEW)


@pytest.mark.parametrize("dtype", TYPES)
def test_any_length_has_room(dtype: str) -> None:
    for k in (256, 2304, 8192, 14336, 28672):
        made = made_for(dtype, n=256, k=k)
        assert made.kernel.source == "mul_mat_fragments.cu"
        assert made.shared <= MANY.shared_per_block


@pytest.mark.parametrize("dtype", TYPES)
def test_few_columns_read_them(dtype: str) -> None:
    """Those of a long row in as many blocks of a cluster as there must be, of which no more are
    there than run at once."""
    for n, k in ((4096, 4096), (4096, 14336), (2048, 14336)):
        for m in (2, 3, 8, 9, 16):
            made = made_for(dtype, n=n, k=k, m=m)
            columns, blocks = numbers_of(made)[-2:]
            assert made.kernel.source == FEW and m <= columns < 2 * m
            assert made.shared <= MANY.shared_per_block
            assert made.grid[0] <= blocks * MANY.clusters(blocks)
            assert made.shared > MANY.shared_among(2)  # each has a multiprocessor of its own
            assert 2 * k * columns // blocks < MANY.shared_per_block
    gate = made_for(dtype, n=14336, op="mul_mat_swiglu", m=16)
    assert gate.kernel.source == FEW


@pytest.mark.parametrize("dtype", TYPES)
def test_many_columns_read_them(dtype: str) -> None:
    """In blocks of 256 rows, whose parts of k are those of mul_mat_columns.cu."""
    for m, columns in ((17, 32), (32, 32), (33, 64), (64, 64), (65, 128), (128, 128)):
        for op, n, k, grid in (
            ("mul_mat", 4096, 4096, (16, 8, 1)),
            ("mul_mat", 4096, 14336, (16, 8, 1)),
            ("mul_mat_swiglu", 14336, 4096, (112, 1, 1)),
            ("mul_mat", 2160, 2304, (9, 9, 1)),
            ("mul_mat", 16, 256, (1, 1, 1)),
        ):
            _, made, *sums = launches_for(op, n, k, MANY, FRAGMENTS, m, dtype=dtype)
            kernel = f"mul_mat_fragments_many<block_{dtype}, {columns}, "
            assert made.kernel.entry.startswith(kernel)
            assert made.grid == grid and len(sums) == (grid[1] > 1)
            assert made.shared <= MANY.shared_per_block
    for other in (made_for(dtype, m=129), made_for(dtype, EQUAL, m=64), made_for(dtype, compact=0)):
        assert other.kernel.source != "mul_mat_fragments_many.cu"


@pytest.mark.parametrize("dtype", TYPES)
def test_without_equal_bits_several_columns_read_them(dtype: str) -> None:
    """As they do with `many`; a single one is faster in int8's order."""
    free = DeviceInfo()
    for m in (2, 8, 16, 17, 64, 128):
        for op in ("mul_mat", "mul_mat_swiglu"):
            found, many = (
                [replace(x, leaves=None) for x in launches_for(op, 4096, 4096, device, FRAGMENTS, m,
                                                               dtype=dtype)]
                for device in (free, MANY)
            )  # fmt: skip
            assert found == many and "mul_mat_fragments" in found[1].kernel.source
    for other in (made_for(dtype, free), made_for(dtype, free, m=129)):
        assert "mul_mat_fragments" not in other.kernel.source


def test_columns_without_room() -> None:
    made = made_for("q4_0", n=8192, k=28672, m=16)  # in four parts, of 229 KB each
    assert made.kernel.source != FEW


def numbers_of(made: Launch) -> list[int]:
    """The numbers in a kernel's name."""
    return [int(x) for x in re.findall(r"\b\d+\b", made.kernel.entry)]


@pytest.mark.parametrize(
    "op, n, k, whole",
    [
        ("mul_mat", 4096, 4096, True),  # 16 of as many units each
        ("mul_mat_swiglu", 14336, 4096, False),  # 14: four for some schedulers, three for others
        ("mul_mat", 128_256, 4096, False),  # more than warps
        ("mul_mat", 2160, 2304, False),  # the same, in parts
    ],
)
def test_chains_are_divided_where_that_is_more_even(op: str, n: int, k: int, whole: bool) -> None:
    for m in (1, 4):
        entry = made_for("q4_0", n=n, k=k, op=op, m=m).kernel.entry
        assert f"block_q4_0, {cpp_bool(whole)}, " in entry


def test_a_warp_has_no_more_than_its_share() -> None:
    for parts, blocks, of_k, tiles in ((1, 1, 16, 14), (8, 4, 56, 9), (9, 1, 9, 2), (5, 1, 16, 3)):
        share = _share(parts, blocks, of_k, tiles, 1)
        units = tiles * of_k // blocks
        assert share.span == of_k // blocks
        assert share.warps == (tiles * parts // blocks if share.whole else min(16, units))
        assert share.stages >= units / 16 and (share.whole or share.stages < units / 16 + 1)
        sums = -(-tiles // blocks) * parts if parts > 1 else 0
        assert share.sums == sums + (0 if share.whole else 16)


@pytest.mark.parametrize("dtype", TYPES)
def test_how_weights_lie(dtype: str) -> None:
    for op, rows in (("mul_mat", (4096,)), ("norm_mul_mat_swiglu", (14336, 14336)),
                     ("norm_qkv_rope", ())):  # fmt: skip
        assert layout_for(op, rows, 4096, MANY, dtype) is FRAGMENTS
        assert layout_for(op, rows, 4096, EQUAL, dtype) is None
    assert layout_for("mul_mat", (4100,), 4096, MANY, dtype) is None


def test_types_that_have_none() -> None:
    for name in OTHERS:
        assert not layouts_of(dtype_by_name(name))


@pytest.mark.slow  # test_compile.py has some types
@pytest.mark.parametrize("dtype", TYPES)
def test_compiles(nvrtc: Any, dtype: str) -> None:
    made = made_for(dtype)
    assert nvrtc.compile_source(made.kernel.source, [made.kernel.entry], "sm_90").names
    assert nvrtc.compile_source("fragments.cu", [f"make_fragments<block_{dtype}>"], "sm_90").names
    entries = [made_for(dtype, k=14336, m=m).kernel.entry for m in (2, 8, 16)]
    assert nvrtc.compile_source(FEW, entries, "sm_90").names


class AsFragments(Compacted):
    layout = FRAGMENTS


def held(p: AsFragments, first: int = 5) -> None:
    """One column has the bits that it has without, and among others, be these few or many."""
    found = p.result(1, first)
    assert any("mul_mat_fragments<" in e for e in p.entries)
    among = p.result(20, first - 2)
    for m in (2, 3, 4, 5, 8, 9, 16):
        some = p.result(m, first - 2)
        assert any("mul_mat_fragments_few<" in e for e in p.entries), m
        for a, b in zip(some, among, strict=True):
            assert (a == b[:m]).all(), (m, int((a != b[:m]).sum()))
    p.is_on = False
    plain = p.result(1, first)
    assert not any("mul_mat_fragments" in e for e in p.entries)
    for a, b, c in zip(found, plain, among, strict=True):
        assert (a == b).all(), int((a != b).sum())
        assert (a == c[2:3]).all(), int((a != c[2:3]).sum())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "op, rows, k",
    [
        ("mul_mat_add", (4096,), 4096),
        ("mul_mat_add", (2048,), 14336),
        ("mul_mat_add", (2160,), 2304),
        ("norm_mul_mat_swiglu", (14336, 14336), 2048),
        ("norm_qkv_rope", (1024, 256, 256), 4096),
        ("norm_qkv_rope", (1792, 256, 256), 2304),
        ("norm_mul_mat", (20_000,), 1024),
        ("mul_mat", (336,), 2304),
        ("mul_mat", (16,), 256),
    ],
)
def test_products_are_the_same(many: Any, op: str, rows: tuple[int, ...], k: int, dtype: str):
    held(AsFragments(many, op, dtype, rows, k, whole=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "op, rows, k",
    [
        ("mul_mat_add", (4096,), 4096),
        ("mul_mat_add", (2160,), 2304),
        ("norm_mul_mat_swiglu", (14336, 14336), 2048),
        ("norm_mul_mat_swiglu", (2160, 2160), 2304),  # no whole tiles
        ("norm_qkv_rope", (1664, 384, 384), 2304),  # the same of all three
        ("norm_qkv_rope", (16384, 1024, 1024), 512),  # one part
        ("mul_mat", (16,), 256),
    ],
)
def test_many_columns_are_the_same(many: Any, op: str, rows: tuple[int, ...], k: int, dtype: str):
    many_held(AsFragments(many, op, dtype, rows, k, whole=True))


def many_held(p: AsFragments) -> None:
    """17 to 128 columns have the bits that they have from the weights as they are."""
    p.is_on = True
    for m in (17, 31, 32, 33, 64, 65, 100, 128):
        found = p.result(m, 3)
        assert any("mul_mat_fragments_many<" in e for e in p.entries), m
        p.is_on = False
        plain = p.result(m, 3)
        assert not any("mul_mat_fragments" in e for e in p.entries)
        p.is_on = True
        for a, b in zip(found, plain, strict=True):
            assert (a == b).all(), (m, int((a != b).sum()))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1e-6, 1e4, 1e6])
@pytest.mark.parametrize("op, rows", [("mul_mat", (336,)), ("norm_mul_mat", (336,))])
def test_columns_of_any_size(many: Any, op: str, rows: tuple[int, ...], size: float) -> None:
    for dtype in ("q4_0", "q6_K"):
        held(AsFragments(many, op, dtype, rows, 4096, size, whole=True))


def encoded(dtype: str, sizes: np.ndarray, k: int = 2304) -> np.ndarray:
    """Bytes of rows of so many sizes."""
    rng, t = np.random.default_rng(7), dtype_by_name(dtype)
    values = rng.standard_normal((len(sizes), k), np.float32) * sizes[:, None].astype(np.float32)
    return encode(t, values).reshape(len(sizes), -1).view(np.uint8)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
def test_scales_of_any_size(many: Any, dtype: str) -> None:
    """From those that halves hold as subnormal numbers, if at all, to the largest of the form."""
    p = AsFragments(many, "mul_mat", dtype, (336,), 2304, whole=True)
    p.w[0].write(0, encoded(dtype, np.geomspace(1e-9, 0.4, 336)))
    held(p)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
def test_scales_that_are_too_large_are_told(gpu: Any, dtype: str) -> None:
    w = Graph().weight("w", dtype_by_name(dtype), (72, 2304))
    for row in (None, 0, 37, 71):
        sizes = np.full(72, 0.4)  # values below 2
        if row is not None:
            sizes[row] = 4.0
        buffer = put(gpu, encoded(dtype, sizes))
        told = compacted(gpu, Operand.of(w, buffer.address), FRAGMENTS)[1]
        assert told == (row is not None), row


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["q4_0", "q5_K"])
def test_turned_heads(many: Any, dtype: str) -> None:
    p = AsFragments(many, "norm_qkv_rope", dtype, (1024, 256, 256), 2048, mode="neox", whole=True)
    held(p)
    many_held(p)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["q4_0", "q8_0"])
def test_a_model_has_the_same_logits(gpu: Any, tmp_path: Path, dtype: str) -> None:
    path = write_tiny(tmp_path / "m.gguf", dtype=dtype, n_embd=1024, n_ff=2048, seed=3)
    ids = list(np.random.default_rng(0).integers(5, 90, 20))

    def run(mode: str, equal: Any = "many") -> tuple[np.ndarray, list[int], int]:
        model = Model.load(path, backends=CUDA, equal_bits=equal, compact_weights=mode)
        session = model.new_session()
        logits = [session.logits(ids), *(session.logits([i]) for i in ids)]
        made = model.new_session().generate(ids, 30, SamplerSettings(temperature=0.0))
        return np.concatenate(logits), list(made), sum(model.weights.compact_bytes.values())

    off, on, auto = (run(mode) for mode in ("off", "on", "auto"))
    assert on[0].tobytes() == off[0].tobytes() == auto[0].tobytes()
    assert on[1] == off[1] == auto[1]
    assert not off[2] and on[2] == auto[2] > 0
    few = run("auto", "few")  # whose prompts have the same bits, and generated rows others
    assert few[0].tobytes() == on[0].tobytes() and not few[2]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["q4_0", "q6_K"])
def test_the_bits_of_many_without_equal_bits(gpu: Any, many: Any, dtype: str) -> None:
    shape = "norm_mul_mat_swiglu", dtype, (2160, 2160), 2304
    free, equal = (AsFragments(device, *shape, whole=True) for device in (gpu, many))
    for m in (2, 9, 17, 100):
        found, expected = free.result(m, 3), equal.result(m, 3)
        assert any("mul_mat_fragments" in e for e in free.entries)
        for a, b in zip(found, expected, strict=True):
            assert (a == b).all(), (m, int((a != b).sum()))


@pytest.mark.gpu
def test_a_model_of_several_sequences(gpu: Any, tmp_path: Path) -> None:
    """Without equal bits they are made for these alone, and logits are as near as before."""
    path = write_tiny(tmp_path / "m.gguf", dtype="q4_0", n_embd=1024, n_ff=2048, seed=3)
    ids = list(np.random.default_rng(0).integers(5, 90, 40))

    def run(mode: str, n_seqs: int = 4) -> tuple[np.ndarray, int]:
        model = Model.load(path, backends=CUDA, compact_weights=mode, n_seqs=n_seqs)
        return model.new_session().logits(ids), sum(model.weights.compact_bytes.values())

    (off, none), (auto, some), (_, alone) = run("off"), run("auto"), run("auto", 1)
    assert some > 0 == none == alone
    a, b = off.astype(np.float64), auto.astype(np.float64)
    assert ((a - b) ** 2).sum() <= 1e-4 * (a**2).sum()


def test_units_are_whole() -> None:
    for name in TYPES:
        t = dtype_by_name(name)
        assert fragment_row_bytes(t, UNIT) == ROW_BYTES[name]
        assert fragment_row_bytes(t, UNIT) * 8 % 16 == 0
        assert fragment_row_bytes(t, UNIT) >= t.row_bytes(UNIT)
