"""float8 matrices: every value, scales of all shapes, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguflow.engine.convert import ConvertError, convert
from gguflow.engine.convert.checkpoint import Checkpoint
from gguflow.engine.convert.fp8 import VALUES, fp8
from gguflow.engine.gguf import GgufFile

KINDS = {np.uint8: "F8_E4M3", np.float32: "F32", np.float16: "F16", np.int8: "U8"}
Tensors = dict[str, np.ndarray]


def source(path: Path, tensors: Tensors, config: dict[str, Any] | None = None) -> Checkpoint:
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": KINDS[x.dtype.type], "shape": list(x.shape),
                        "data_offsets": [at, at + x.nbytes]}  # fmt: skip
        at += x.nbytes
    text = json.dumps(header).encode()
    data = b"".join(np.ascontiguousarray(x).tobytes() for x in tensors.values())
    raw = len(text).to_bytes(8, "little") + text + data
    (path / "model.safetensors").write_bytes(raw)
    (path / "config.json").write_text(json.dumps(config or {}))
    return Checkpoint(path)


def codes(n: int, k: int) -> np.ndarray:
    """Any that are numbers."""
    found = np.random.default_rng(5).integers(0, 254, (n, k)).astype(np.uint8)
    return np.where(found & 127 == 127, 3, found).astype(np.uint8)


def test_values() -> None:
    for code, value in ((0, 0.0), (1, 2.0**-9), (7, 7 * 2.0**-9), (8, 2.0**-6), (0x38, 1.0),
                        (0x39, 1.125), (0x7E, 448.0), (0xB8, -1.0), (0xFE, -448.0)):  # fmt: skip
        assert VALUES[code] == value
    assert np.isnan(VALUES[[127, 255]]).all() and np.isfinite(VALUES[:127]).all()
    assert (np.diff(VALUES[:127]) > 0).all()


@pytest.mark.parametrize("suffix", ["_scale_inv", "_scale"])
def test_blocks_that_end_early(tmp_path: Path, suffix: str) -> None:
    """300 x 200 in blocks of 128 x 128 are 3 x 2; slabs begin and end within a block."""
    q = codes(300, 200)
    scales = np.arange(1, 7, dtype=np.float32).reshape(3, 2) / 8
    want = VALUES[q] * np.kron(scales, np.ones((128, 128), np.float32))[:300, :200]
    w = fp8("a.weight", source(tmp_path, {"a.weight": q, f"a.weight{suffix}": scales}))
    assert np.array_equal(w.make(), want)
    slabs = list(w.slabs(50 * 200))
    assert [len(x) for x in slabs] == [50] * 6
    assert np.array_equal(np.concatenate(slabs), want)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (300, 1)])
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_scales_of_rows_and_of_all(tmp_path: Path, shape: tuple[int, ...], kind: type) -> None:
    q = codes(300, 200)
    scales = np.linspace(0.5, 2, int(np.prod(shape))).astype(kind).reshape(shape)
    w = fp8("a.weight", source(tmp_path, {"a.weight": q, "a.weight_scale": scales}))
    by = scales.astype(np.float32).reshape(-1, 1)
    assert np.array_equal(w.make(), VALUES[q] * by)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


BAD: list[tuple[Tensors, str]] = [
    ({"a.weight": codes(4, 4)}, "no matrix with a tensor of scales"),
    ({"a.weight": codes(4, 4)[0], "a.weight_scale": ones()}, "no matrix"),
    ({"a.weight": codes(300, 200), "a.weight_scale_inv": ones(2, 3)}, r"\[3, 2\] of blocks"),
    ({"a.weight": codes(300, 200), "a.weight_scale": ones(300)}, r"\[3, 2\] of blocks"),
    ({"a.weight": codes(300, 200), "a.weight_scale": ones(0)}, r"\[3, 2\] of blocks"),
    ({"a.weight": codes(4, 4), "a.weight_scale": np.ones((), np.int8)}, r"scales i8\[\]"),
    ({"a.weight": codes(4, 4), "a.weight_scale": ones() * np.nan}, "a scale that is no number"),
    ({"a.weight": np.full((4, 4), 255, np.uint8), "a.weight_scale": ones()}, "a value that is no"),
]


@pytest.mark.parametrize(("tensors", "message"), BAD)
def test_what_does_not_fit(tmp_path: Path, tensors: Tensors, message: str) -> None:
    with pytest.raises(ConvertError, match=message):
        fp8("a.weight", source(tmp_path, tensors)).make()


def compressed(**changes: Any) -> dict[str, Any]:
    weights = {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True} | changes
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
        "weights": weights}}}  # fmt: skip


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quant_method 'gptq' is not supported; have fp8"),
        ({"load_in_4bit": True}, "quant_method None"),
        ("awq", "quant_method 'awq'"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2'"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, r"blocks of \[128, 0\]"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "blocks of 128"),
        (compressed(type="int"), "weights' type 'int'"),
        (compressed(num_bits=4), "weights' num_bits 4"),
        (compressed(strategy="group"), "weights' strategy 'group'"),
        (compressed() | {"format": "pack-quantized"}, "format 'pack-quantized'"),
        (compressed() | {"transform_config": {"a": 1}}, "transform_config"),
        (compressed() | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        (compressed() | {"sparsity_config": [2]}, r"sparsity_config \[2\]"),
        (compressed() | {"config_groups": None}, "config_groups None"),
        (compressed() | {"config_groups": {"a": {}}}, "weights None"),
    ],
)
def test_other_kinds_are_named(
    checkpoint: Callable[[str], Path], tmp_path: Path, told: Any, message: str
) -> None:
    path = checkpoint("qwen3fp8")
    values = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(values | {"quantization_config": told}))
    with pytest.raises(ConvertError, match=f"config.json: quantization_config: {message}"):
        convert(path, tmp_path / "m.gguf")


def test_blocks_of_compressed_tensors(tmp_path: Path) -> None:
    told = {"quantization_config": compressed(strategy="block", block_structure=[2, 8])}
    q, scales = codes(4, 12), np.float32([[1, 2], [3, 4]])
    w = fp8("a.weight", source(tmp_path, {"a.weight": q, "a.weight_scale": scales}, told))
    assert np.array_equal(w.make(), VALUES[q] * scales.repeat(2, 0).repeat(8, 1)[:, :12])


def test_matrices_become_bfloat16(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    convert(checkpoint("qwen3fp8"), out)
    with GgufFile.open(out) as f:
        assert f.tensors["blk.0.attn_q.weight"].dtype.name == "bf16"
