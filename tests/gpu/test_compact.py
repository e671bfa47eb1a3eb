"""16-bit weights in their compact form: what lies where, and that products have the same bits."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import nmse
from kernel_list import DEVICE, EQUAL
from test_equal_floats import Product
from test_mul_mat_columns import EPS, declared, heads, weight
from test_mul_mat_few import norm
from tiny_model import write_tiny

from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import F16, I32, Graph, Tensor, dtype_by_name
from gguflow.engine.graph import Operand as Leaf
from gguflow.engine.model import Model
from gguflow.engine.sampling import SamplerSettings
from gguflow.kernels.cuda.compact import (
    ALONG,
    EIGHTS,
    Layout,
    compact_bytes,
    compact_launch,
    layout_of,
    row_bytes,
)
from gguflow.kernels.cuda.launch import Call, CompactForm, DeviceInfo, Launch, Operand, launches

CUDA = ("cuda", "cpu", "numpy")
AT = 1 << 40


def launch_of(*args: Any, **how: Any) -> Launch:
    """The last of `launches_for`."""
    return launches_for(*args, **how)[-1]


def launches_for(
    op: str, n: int, k: int, device: DeviceInfo, layout: Layout = EIGHTS, m: int = 1,
    compact: int = 2, dtype: str = "f16",
) -> list[Launch]:  # fmt: skip
    """compact: of how many weights the compact form is there."""
    weights = [weight(n, k, dtype) for _ in range(2 if op.endswith("swiglu") else 1)]
    node = declared(op, *weights, Leaf((m, k)))
    form = CompactForm(AT, layout.name)
    srcs = [
        None if s is None else replace(Operand.of(s, (i + 2) << 32), compact=form)
        for i, s in enumerate(node.srcs)
    ]
    srcs[compact:] = [None if s is None else replace(s, compact=None) for s in srcs[compact:]]
    call = Call(node, Operand.of(node, 1 << 32), tuple(srcs), device, scratch=9 << 32)
    made = launches(call)
    assert all(isinstance(x, Launch) for x in made)
    return [x for x in made if isinstance(x, Launch)]


@pytest.mark.parametrize("device", [DEVICE, EQUAL], ids=["", "equal bits"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_single_column_reads_it(device: DeviceInfo, dtype: str) -> None:
    of_vec = [] if device.equal_bits else [(2048, ALONG), (4096, ALONG)]
    for op in ("mul_mat", "mul_mat_swiglu"):
        for k, layout in ((4096, EIGHTS), *of_vec):
            made = launch_of(op, 4096, k, device, layout, dtype=dtype)
            plain = launch_of(op, 4096, k, device, layout, compact=0, dtype=dtype)
            assert f"compact<{dtype}>" in made.kernel.entry
            assert AT.to_bytes(8, "little") in made.args
            assert row_bytes(dtype_by_name(dtype), k).to_bytes(8, "little") in made.args
            assert "compact" not in plain.kernel.entry


@pytest.mark.parametrize("device", [DEVICE, EQUAL], ids=["", "equal bits"])
def test_what_does_not(device: DeviceInfo) -> None:
    for layout in (EIGHTS, ALONG):
        for made in (
            launch_of("mul_mat", 4096, 4096, device, layout, m=2),
            launch_of("mul_mat_swiglu", 4096, 4096, device, layout, compact=1),
            launch_of("mul_mat", 4096, 4096 + 64, device, layout),
            launch_of("mul_mat", 4096, 4096, device, layout, dtype="q8_0"),
            launch_of("mul_mat", 4100, 4096, device),
        ):
            assert "compact" not in made.kernel.entry
    other = ALONG if device.equal_bits else EIGHTS  # a small matrix otherwise
    assert "compact" not in launch_of("mul_mat", 2048, 2048, device, other).kernel.entry


def layout_for(op: str, rows: tuple[int, ...], k: int, device: DeviceInfo, dtype: str) -> Any:
    if op == "norm_qkv_rope":
        node = heads((dtype,) * 3, 1, "f16", "norm", k, declared)
        return layout_of(node.srcs[2], [node], device)
    op = op.removesuffix("_add")
    weights = [weight(n, k, dtype) for n in rows]
    before = [Leaf((1, k)), norm(k)] if op.startswith("norm_") else []
    beside = [] if before else [Leaf((1, k))]
    node = declared(op, *before, *weights, *beside, **(EPS if before else {}))
    w = node.srcs[len(before)]
    assert w is not None
    if dtype in ("f16", "bf16"):
        assert compact_bytes(w) == rows[0] * k * 15 // 8
    assert layout_of(w, [], device) is None
    return layout_of(w, [node], device)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_how_weights_lie(dtype: str) -> None:
    for op, rows, k, usual in (
        ("mul_mat", (4096,), 4096, EIGHTS),
        ("norm_mul_mat", (16_384,), 14336, EIGHTS),
        ("norm_mul_mat_swiglu", (14336, 14336), 4096, EIGHTS),
        ("mul_mat", (2048,), 8192, ALONG),
        ("mul_mat_swiglu", (4096, 4096), 2048, ALONG),
        ("norm_qkv_rope", (), 4096, ALONG),
    ):
        assert layout_for(op, rows, k, DEVICE, dtype) is usual
        assert layout_for(op, rows, k, EQUAL, dtype) is EIGHTS
    assert layout_for("mul_mat", (4096,), 4160, DEVICE, dtype) is None
    assert layout_for("mul_mat", (4095,), 2048, EQUAL, dtype) is None
    assert layout_for("mul_mat", (4096,), 4096, DEVICE, "q8_0") is None
    older = replace(DEVICE, arch="sm_80")
    assert layout_for("mul_mat", (4096,), 4096, older, dtype) is ALONG


def test_weights_that_are_looked_up_have_none() -> None:
    g = Graph()
    w = g.weight("w", F16, (100, 2048))
    rows = g.get_rows(w, g.input("ids", I32, (1,)))
    assert layout_of(w, [rows], DEVICE) is None


@pytest.mark.parametrize("device", [DEVICE, EQUAL], ids=["", "equal bits"])
def test_blocks_that_attention_leaves_room_for(device: DeviceInfo) -> None:
    for n, k, blocks in ((4096, 4096, 116), (4096, 14336, 132), (128_256, 4096, 132)):
        assert launch_of("mul_mat", n, k, device).grid == (blocks, 1, 1)
    assert launch_of("mul_mat_swiglu", 4096, 4096, device).grid == (132, 1, 1)


def test_no_part_is_empty() -> None:
    for k in range(4096, 16_384, 128):
        made = launch_of("mul_mat", 4096, k, DEVICE)
        assert made.kernel.entry.startswith("mul_mat_one_float<PLAIN, compact<f16>")
        length, parts = plan_numbers(made)
        assert (parts - 1) * length < k <= parts * length and length % 128 == 0


def plan_numbers(made: Launch) -> tuple[int, int]:
    """A part's elements and how many parts there are: see the end of `OneFloatArgs`."""
    (parts,), (length,) = (
        struct.unpack_from("@i", made.args, len(made.args) - n) for n in (44, 12)
    )
    return length, parts


@pytest.mark.parametrize("layout", ["Along", "Eights"])
def test_compiles(nvrtc: Any, layout: str) -> None:
    assert nvrtc.compile_source("compact.cu", [f"compact_rows<{layout}>"], "sm_90").names


@pytest.mark.parametrize("device", [DEVICE, EQUAL], ids=["", "equal bits"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_products_compile(nvrtc: Any, device: DeviceInfo, dtype: str) -> None:
    made = launch_of("mul_mat", 4096, 4096, device, dtype=dtype)
    assert nvrtc.compile_source(made.kernel.source, [made.kernel.entry], "sm_90").names


def restored(raw: np.ndarray, rows: int, k: int, layout: Layout) -> np.ndarray:
    """Bytes of the compact form -> uint16 [rows, k]."""
    units = raw.view(np.uint32).reshape(-1, 480)
    steps, words = (3, 4) if layout is ALONG else (7, 2)  # that lie by lanes, and a lane's of each
    whole = units[:, : 32 * steps * words].reshape(-1, steps, 32, words).transpose(0, 2, 1, 3)
    others = units[:, 32 * steps * words :]
    two = [others[:, :64].reshape(-1, 32, 2), others[:, 64:, None]]
    rest = two if layout is ALONG else [others[:, :, None]]
    sets = np.concatenate([whole.reshape(-1, 32, steps * words), *rest], axis=2)
    last = np.zeros(sets.shape[:2], np.uint32)
    for i in range(15):
        place = i if i < 14 else 15
        last |= (sets[..., i] >> 14 & 1) << place | (sets[..., i] >> 30 & 1) << (16 + place)
    sets = np.concatenate([sets & 0xBFFFBFFF, last[..., None]], axis=2)
    if layout is ALONG:
        words = sets.reshape(rows, k // 1024, 32, 4, 4).transpose(0, 1, 3, 2, 4)
    else:
        by_row = sets.reshape(rows // 8, k // 128, 8, 4, 8, 2)
        words = by_row.transpose(0, 2, 1, 4, 3, 5)
    return np.ascontiguousarray(words).reshape(rows, -1).astype(np.uint32).view(np.uint16)


@pytest.fixture(params=[False, True], ids=["", "equal bits"])
def either(gpu: Any, request: pytest.FixtureRequest) -> Any:
    return find_backend("cuda", {"equal_bits": request.param})


def put(gpu: Any, data: np.ndarray) -> Any:
    buffer = gpu.alloc(data.nbytes)
    buffer.write(0, data)
    return buffer


def compacted(gpu: Any, w: Operand, layout: Layout) -> tuple[Any, bool]:
    """The compact form, and whether a weight was too large for it."""
    to, told = gpu.alloc(w.ne[1] * row_bytes(w.dtype, w.ne[0])), gpu.alloc(4)
    launch = compact_launch(w, CompactForm(to.address, layout.name), told.address)
    gpu.modules.prepare([launch.kernel])
    gpu.modules.bind(launch).issue()
    return to, bool(told.read(0, 4).view(np.int32)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("gap", [0, 16])
@pytest.mark.parametrize("layout", [EIGHTS, ALONG], ids=lambda x: x.name)
@pytest.mark.parametrize("rows, k", [(8, 1024), (40, 3072), (296, 5120)])
def test_every_bit_is_kept(gpu: Any, rows: int, k: int, gap: int, layout: Layout) -> None:
    bits = np.random.default_rng(0).integers(1 << 16, size=(rows, k), dtype=np.uint16) & 0xBFFF
    stored = np.zeros((rows, k + gap // 2), np.uint16)
    stored[:, :k] = bits
    buffer = put(gpu, stored)
    t = Graph().weight("w", F16, (rows, k))
    w = Operand.of(t, buffer.address)
    w = replace(w, nb=(2, 2 * k + gap, *w.nb[2:]))
    to, too_large = compacted(gpu, w, layout)
    assert not too_large
    assert (restored(to.read(0, to.nbytes), rows, k, layout) == bits).all()


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [EIGHTS, ALONG], ids=lambda x: x.name)
@pytest.mark.parametrize("value", [2.0, -2.0, -60000.0, np.inf, np.nan])
def test_what_is_too_large_is_told(gpu: Any, value: float, layout: Layout) -> None:
    data = np.full((72, 1024), 1.9990234375, np.float16)  # the largest below 2
    w = Graph().weight("w", F16, data.shape)
    for at in (-1, 0, 511, 1023, 1024, 73_727):
        wrong = data.copy()
        if at >= 0:
            wrong.reshape(-1)[at] = value
        buffer = put(gpu, wrong)
        assert compacted(gpu, Operand.of(w, buffer.address), layout)[1] == (at >= 0), at


class Compacted(Product):
    """Weights there in both forms."""

    is_on, layout = True, EIGHTS

    def operand(self, t: Tensor, address: int) -> Operand:
        plain = super().operand(t, address)
        if not self.is_on or t.name[0] != "w" or t.name == "wn":
            return plain
        if not hasattr(self, "forms"):
            self.forms: dict[str, Any] = {}
        layout = self.layout
        if t.name not in self.forms:
            self.forms[t.name], too_large = compacted(self.gpu, plain, layout)
            assert not too_large
        return replace(plain, compact=CompactForm(self.forms[t.name].address, layout.name))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(
    "op, rows, k",
    [
        ("mul_mat_add", (4096,), 4096),
        ("mul_mat_add", (4096,), 14336),
        ("norm_mul_mat_swiglu", (14336, 14336), 4096),
        ("norm_qkv_rope", (4096, 1024, 1024), 4096),
        ("mul_mat_swiglu", (8192, 8192), 2048),
        ("norm_mul_mat", (20_000,), 1024),
        ("mul_mat", (336,), 1024),
    ],
)
def test_products_are_the_same(
    either: Any, op: str, rows: tuple[int, ...], k: int, dtype: str
) -> None:
    p = Compacted(either, op, dtype, rows, k, whole=True)
    p.layout = layout_for(op, rows, k, either.device.info, dtype)
    found = p.result(1, 5)
    (entry,) = p.entries
    assert "compact" in entry
    p.is_on = False
    plain = p.result(1, 5)
    assert not any("compact" in e for e in p.entries)
    if entry.endswith("true>"):  # another kernel, to which rounding the column makes no difference
        a, b = (x[0].view(np.float32).astype(np.float64) for x in (found, plain))
        assert 0 < nmse(a, b) < (1e-12 if dtype == "f16" else 1e-10)
        for x, y in zip(found[1:], plain[1:], strict=True):  # rows of states
            np.testing.assert_allclose(x.view(np.float16), y.view(np.float16), 2e-3, 1e-6)
        return
    for a, b in zip(found, plain, strict=True):
        assert (a == b).all(), int((a != b).sum())


@pytest.mark.gpu
@pytest.mark.parametrize(
    "rows, k", [(16, 128), (208, 256), (208, 384), (16, 8576), (2048, 8192), (4096, 14336)]
)
def test_rows_of_any_number_of_units(gpu: Any, rows: int, k: int) -> None:
    """With equal bits, of which parts begin and end within a unit."""
    equal = find_backend("cuda", {"equal_bits": True})
    p = Compacted(equal, "mul_mat", "f16", (rows,), k, whole=True)
    found = p.result(1)
    assert any("compact" in e for e in p.entries)
    p.is_on = False
    assert (found[0] == p.result(1)[0]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize("rows", [(1024, 256, 256), (128, 128, 128)])
def test_turned_heads(either: Any, rows: tuple[int, ...], mode: str) -> None:
    k = 4096  # of less there may be parts with equal bits that are no whole units
    p = Compacted(either, "norm_qkv_rope", "f16", rows, k, mode=mode, whole=True)
    p.layout = layout_for("norm_qkv_rope", rows, k, either.device.info, "f16")
    found = p.result(1, 7)
    assert any("compact" in e for e in p.entries)
    p.is_on = False
    assert all((a == b).all() for a, b in zip(found, p.result(1, 7), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("equal_bits", [False, True])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_model_has_the_same_logits(
    gpu: Any, tmp_path: Path, dtype: str, equal_bits: bool
) -> None:
    path = write_tiny(tmp_path / "m.gguf", dtype=dtype, n_embd=1024, n_ff=2048, seed=3)
    ids = list(np.random.default_rng(0).integers(5, 90, 20))

    def run(mode: str) -> tuple[bytes, list[int], dict[str, int]]:
        model = Model.load(path, backends=CUDA, equal_bits=equal_bits, compact_weights=mode)
        assert not model.weights.compact_bytes or mode != "off"
        session = model.new_session()
        logits = [session.logits(ids).tobytes()] + [session.logits([i]).tobytes() for i in ids]
        made = model.new_session().generate(ids, 30, SamplerSettings(temperature=0.0))
        return b"".join(logits), list(made), model.weights.compact_bytes

    off, on, auto = (run(mode) for mode in ("off", "on", "auto"))
    assert on[:2] == off[:2] == auto[:2]
    assert not off[2] and on[2] == auto[2] and sum(on[2].values()) > 0


@pytest.mark.gpu
def test_a_weight_that_is_too_large_stays_as_it_is(gpu: Any, tmp_path: Path) -> None:
    def size(gain: float) -> int:
        shape = {"n_embd": 1024, "n_ff": 2048, "dtype": "f16", "seed": 3}
        path = write_tiny(tmp_path / "m.gguf", gain=gain, **shape)
        return sum(Model.load(path, backends=CUDA).weights.compact_bytes.values())

    assert size(1.0) > size(1000.0) == 0
