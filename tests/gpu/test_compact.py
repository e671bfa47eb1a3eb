"""16-bit weights in their compact form: what lies where, and that products have the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_list import DEVICE, EQUAL
from test_equal_floats import Product
from test_mul_mat_columns import declared, weight
from tiny_model import write_tiny

from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import F16, I32, Graph, Tensor
from gguflow.engine.graph import Operand as Leaf
from gguflow.engine.model import Model
from gguflow.engine.sampling import SamplerSettings
from gguflow.kernels.cuda.compact import (
    ALONG,
    EIGHTS,
    Layout,
    compact_bytes,
    compact_launch,
    row_bytes,
)
from gguflow.kernels.cuda.launch import Call, DeviceInfo, Launch, Operand, launches

CUDA = ("cuda", "cpu", "numpy")
AT = 1 << 40


def launch_of(
    op: str, n: int, k: int, device: DeviceInfo, m: int = 1, compact: int = 2, dtype: str = "f16"
) -> Launch:
    """compact: of how many weights the compact form is there."""
    weights = [weight(n, k, dtype) for _ in range(2 if op.endswith("swiglu") else 1)]
    node = declared(op, *weights, Leaf((m, k)))
    srcs = [
        None if s is None else replace(Operand.of(s, (i + 2) << 32), compact=AT * (i < compact))
        for i, s in enumerate(node.srcs)
    ]
    call = Call(node, Operand.of(node, 1 << 32), tuple(srcs), device, scratch=9 << 32)
    *_, made = launches(call)
    assert isinstance(made, Launch)
    return made


@pytest.mark.parametrize("device", [DEVICE, EQUAL], ids=["", "equal bits"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_single_column_reads_it(device: DeviceInfo, dtype: str) -> None:
    for op in ("mul_mat", "mul_mat_swiglu"):
        made = launch_of(op, 4096, 4096, device, dtype=dtype)
        plain = launch_of(op, 4096, 4096, device, compact=0, dtype=dtype)
        assert f"compact<{dtype}>" in made.kernel.entry
        assert AT.to_bytes(8, "little") in made.args
        assert row_bytes(4096).to_bytes(8, "little") in made.args
        assert "compact" not in plain.kernel.entry
        assert made.shared <= plain.shared or device.equal_bits  # which may have more stages then


@pytest.mark.parametrize("device", [DEVICE, EQUAL], ids=["", "equal bits"])
def test_what_does_not(device: DeviceInfo) -> None:
    for made in (
        launch_of("mul_mat", 4096, 4096, device, m=2),
        launch_of("mul_mat_swiglu", 4096, 4096, device, compact=1),
        launch_of("mul_mat", 4096, 4096 + 64, device),
        launch_of("mul_mat", 4096, 4096, device, dtype="q8_0"),
    ):
        assert "compact" not in made.kernel.entry


def node_of(dtype: str = "f16", k: int = 2048, op: str = "mul_mat") -> tuple[Tensor, Tensor]:
    node = declared(op, weight(64, k, dtype), Leaf((1, k)))
    w = node.srcs[0]
    assert w is not None
    return w, node


def test_its_bytes() -> None:
    for device, layout in ((DEVICE, ALONG), (EQUAL, EIGHTS)):
        k = 2 * layout.weights
        w, node = node_of(k=k)
        assert compact_bytes(w, [node], device) == 64 * k * 15 // 8
        assert compact_bytes(w, [], device) == 0
        for w, node in (node_of(k=k + 64), node_of("q8_0", k)):
            assert compact_bytes(w, [node], device) == 0


def test_weights_that_are_looked_up_have_none() -> None:
    g = Graph()
    w = g.weight("w", F16, (100, 2048))
    rows = g.get_rows(w, g.input("ids", I32, (1,)))
    assert compact_bytes(w, [rows], DEVICE) == 0


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


def compacted(gpu: Any, w: Operand) -> tuple[Any, bool]:
    """The compact form, and whether a weight was too large for it."""
    to, told = gpu.alloc(w.ne[1] * row_bytes(w.ne[0])), gpu.alloc(4)
    launch = compact_launch(w, to.address, told.address, gpu.device.info)
    gpu.modules.prepare([launch.kernel])
    gpu.modules.bind(launch).issue()
    return to, bool(told.read(0, 4).view(np.int32)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("gap", [0, 16])
@pytest.mark.parametrize("rows, k", [(8, 1024), (40, 3072), (296, 5120)])
def test_every_bit_is_kept(either: Any, rows: int, k: int, gap: int) -> None:
    bits = np.random.default_rng(0).integers(1 << 16, size=(rows, k), dtype=np.uint16) & 0xBFFF
    stored = np.zeros((rows, k + gap // 2), np.uint16)
    stored[:, :k] = bits
    buffer = put(either, stored)
    t = Graph().weight("w", F16, (rows, k))
    w = Operand.of(t, buffer.address)
    w = replace(w, nb=(2, 2 * k + gap, *w.nb[2:]))
    to, too_large = compacted(either, w)
    layout = EIGHTS if either.device.info.equal_bits else ALONG
    assert not too_large
    assert (restored(to.read(0, to.nbytes), rows, k, layout) == bits).all()


@pytest.mark.gpu
@pytest.mark.parametrize("value", [2.0, -2.0, -60000.0, np.inf, np.nan])
def test_what_is_too_large_is_told(either: Any, value: float) -> None:
    for at in (0, 511, 1023, 1024, 73_727):
        data = np.full((72, 1024), 1.9990234375, np.float16)  # the largest below 2
        w = Graph().weight("w", F16, data.shape)
        assert not compacted(either, Operand.of(w, (b := put(either, data)).address))[1], b
        data.reshape(-1)[at] = value
        buffer = put(either, data)
        assert compacted(either, Operand.of(w, buffer.address))[1], at


class Compacted(Product):
    """Weights there in both forms."""

    is_on = True

    def operand(self, t: Tensor, address: int) -> Operand:
        plain = super().operand(t, address)
        if not self.is_on or t.name[0] != "w" or t.name == "wn":
            return plain
        if not hasattr(self, "forms"):
            self.forms: dict[str, Any] = {}
        if t.name not in self.forms:
            self.forms[t.name], too_large = compacted(self.gpu, plain)
            assert not too_large
        return replace(plain, compact=self.forms[t.name].address)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(
    "op, rows, k",
    [
        ("mul_mat_add", (4096,), 4096),
        ("mul_mat_add", (4096,), 14336),
        ("norm_mul_mat_swiglu", (14336, 14336), 4096),
        ("norm_qkv_rope", (4096, 1024, 1024), 4096),
        ("mul_mat_swiglu", (296, 296), 2048),
        ("norm_mul_mat", (20_000,), 1024),
        ("mul_mat", (336,), 1024),
    ],
)
def test_products_have_the_same_bits(
    either: Any, op: str, rows: tuple[int, ...], k: int, dtype: str
) -> None:
    p = Compacted(either, op, dtype, rows, k, whole=True)
    found = p.result(1, 5)
    assert any("compact" in e for e in p.entries), p.entries
    p.is_on = False
    plain = p.result(1, 5)
    assert not any("compact" in e for e in p.entries)
    for a, b in zip(found, plain, strict=True):
        assert (a == b).all(), int((a != b).sum())


@pytest.mark.gpu
@pytest.mark.parametrize("k", [128, 256, 384, 640, 1152, 8576])
@pytest.mark.parametrize("rows", [16, 208, 4096])
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
    p = Compacted(either, "norm_qkv_rope", "f16", rows, 2048, mode=mode, whole=True)
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
