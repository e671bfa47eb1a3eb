"""Loading: what does not fit its architecture is named, and types without kernels are converted."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from tiny_model import tiny_hparams, tiny_weights, write_tiny

from gguflow.engine.gguf import GgufError, Typed, UnsupportedType, write_gguf
from gguflow.engine.graph import F32, dtype_by_id
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.models.base import ModelError, architecture
from gguflow.models.shapes import metadata

IDS = [1, 10, 20, 30, 40, 50]


def model_weights() -> dict[str, np.ndarray]:
    return tiny_weights(architecture("llama")(tiny_hparams("llama")))


# -- tensors ---------------------------------------------------------------------------------------


def write_weights(path: Path, weights: dict[str, np.ndarray]) -> Path:
    model = architecture("llama")(tiny_hparams("llama"))
    tensors = {n: (F32, a.shape, a) for n, a in weights.items()}
    write_gguf(path, dict(metadata(model)), tensors)
    return path


@pytest.mark.parametrize(
    "name", ["output_norm.weight", "blk.0.attn_q.weight", "blk.1.ffn_down.weight"]
)
def test_a_missing_tensor_is_named_with_its_shape(tmp_path: Path, name: str) -> None:
    weights = model_weights()
    shape = list(weights.pop(name).shape)
    path = write_weights(tmp_path / "m.gguf", weights)
    with pytest.raises(ModelError) as e:
        open_model(path)
    for part in (str(path), name, "missing", str(shape)):
        assert part in str(e.value)


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.attn_norm.weight", "output.weight"])
def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path, name: str) -> None:
    weights = model_weights()
    good = weights[name].shape
    bad = (*good[:-1], good[-1] + 32)
    weights[name] = np.zeros(bad, np.float32)
    with pytest.raises(ModelError) as e:
        open_model(write_weights(tmp_path / "m.gguf", weights))
    for part in (name, str(list(good)), str(list(bad))):
        assert part in str(e.value)


def test_a_transposed_matrix_is_not_taken(tmp_path: Path) -> None:
    weights = model_weights()
    weights["blk.0.ffn_up.weight"] = np.ascontiguousarray(weights["blk.0.ffn_up.weight"].T)
    with pytest.raises(ModelError, match="blk.0.ffn_up.weight"):
        open_model(write_weights(tmp_path / "m.gguf", weights))


def test_extra_tensors_are_noted_and_ignored(tmp_path: Path) -> None:
    plain = write_tiny(tmp_path / "plain.gguf")
    extra = {f"extra.{i}.weight": np.zeros((2, 2), np.float32) for i in range(6)}
    path = write_tiny(tmp_path / "m.gguf", weights=extra)
    assert open_model(plain).notes == ()
    (note,) = open_model(path).notes
    assert "6 tensors" in note
    assert "extra.0.weight" in note
    assert np.array_equal(Model.load(path).logits(IDS), Model.load(plain).logits(IDS))


def test_a_vocabulary_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    write_gguf(path, {"general.architecture": "llama", "llama.block_count": 2})
    with pytest.raises(ModelError, match=r"token_embd\.weight.*only a vocabulary"):
        open_model(path)


def test_a_vocabulary_file_of_the_field(shared_data: Path) -> None:
    with pytest.raises(ModelError, match="only a vocabulary"):
        open_model(shared_data / "ggml-vocab-llama-spm.gguf")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises((FileNotFoundError, GgufError), match=r"none\.gguf"):
        open_model(tmp_path / "none.gguf")


# -- keys ------------------------------------------------------------------------------------------

NOT_FINITE = [math.nan, math.inf, -math.inf]
BAD_KEYS: list[tuple[str, Any]] = [
    (".block_count", 0),
    (".block_count", 1 << 31),
    (".block_count", Typed("i32", -1)),
    (".block_count", Typed("u64", (1 << 64) - 1)),
    (".block_count", "two"),
    (".block_count", 2.0),
    (".block_count", True),
    (".block_count", None),
    (".block_count", Typed("arr[i32]", [2, 3])),
    (".block_count", Typed("arr[i32]", [])),
    (".attention.head_count", 0),
    (".attention.head_count", None),
    (".attention.head_count", 3),
    (".attention.head_count", 1 << 20),
    (".attention.head_count_kv", 0),
    (".attention.head_count_kv", 3),
    (".attention.head_count_kv", 8),
    (".attention.key_length", 0),
    (".attention.key_length", 15),
    (".attention.value_length", 0),
    (".attention.value_length", 1 << 31),
    (".embedding_length", 0),
    (".embedding_length", 1 << 31),
    (".embedding_length", None),
    (".feed_forward_length", 0),
    (".feed_forward_length", None),
    (".context_length", 0),
    (".context_length", 1 << 31),
    (".context_length", None),
    (".rope.dimension_count", 0),
    (".rope.dimension_count", 7),
    (".rope.dimension_count", 32),
    (".rope.freq_base", 0.0),
    (".rope.freq_base", -1.0),
    *((".rope.freq_base", v) for v in NOT_FINITE),
    *((".attention.layer_norm_rms_epsilon", v) for v in NOT_FINITE),
    (".attention.layer_norm_rms_epsilon", -1e-5),
    (".attention.layer_norm_rms_epsilon", None),
    (".attention.sliding_window", Typed("i32", -4)),
    (".rope.scaling.type", "longrope"),
    (".rope.scaling.type", 5),
    (".rope.scaling.factor", math.nan),
    (".rope.scaling.factor", -2.0),
]


@pytest.mark.parametrize(("key", "value"), BAD_KEYS, ids=lambda v: str(getattr(v, "value", v)))
def test_a_bad_key_is_named(tmp_path: Path, key: str, value: Any) -> None:
    path = write_tiny(tmp_path / "m.gguf", keys={key: value})
    with pytest.raises((ModelError, GgufError)) as e:
        open_model(path)
    message = str(e.value)
    # Heads of 15 or 16 values: what does not fit them is the rotary dimension.
    fits = {".attention.key_length": ".rope.dimension_count"}
    assert key in message or fits.get(key, key) in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize("name", ["gpt9", "", "llama\nfoo", "../llama"])
def test_an_unknown_architecture_lists_the_known(tmp_path: Path, name: str) -> None:
    path = write_tiny(tmp_path / "m.gguf", keys={"general.architecture": name})
    with pytest.raises(ModelError, match=r"general\.architecture.*llama, .*qwen2, .*qwen3, ") as e:
        open_model(path)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("value", [None, 5, Typed("arr[str]", ["llama"])])
def test_an_architecture_that_is_no_text(tmp_path: Path, value: Any) -> None:
    path = write_tiny(tmp_path / "m.gguf", keys={"general.architecture": value})
    with pytest.raises(ModelError, match=r"general\.architecture"):
        open_model(path)


def test_per_layer_arrays_of_one_value_are_that_value(tmp_path: Path) -> None:
    plain = write_tiny(tmp_path / "plain.gguf")
    keys = {".attention.head_count_kv": Typed("arr[i32]", [2, 2])}
    path = write_tiny(tmp_path / "m.gguf", keys=keys)
    assert np.array_equal(Model.load(path).logits(IDS), Model.load(plain).logits(IDS))


# -- element types -------------------------------------------------------------------------

N = 256  # of a row: every type's block divides it


def _random_blocks(kind: Kind, rows: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Blocks of random bits with scales of a few thousandths."""
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]

    def make(rng: np.random.Generator) -> np.ndarray:
        blocks = rng.integers(0, 256, (rows * N // block, nbytes), np.uint8)
        scale = np.frombuffer(np.float16(0.004).tobytes(), np.uint8)
        if kind in (Kind.TQ1_0, Kind.TQ2_0):
            blocks[:, -2:] = scale
        elif kind is Kind.IQ1_M:  # a float16 in the high halves of four scale words
            bits = int(np.float16(0.004).view(np.uint16))
            for i in range(4):
                blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 0x0F | (bits >> 4 * i & 15) << 4
        elif kind is Kind.MXFP4:
            blocks[:, 0] = 120  # 2^(120 - 128)
        elif kind is Kind.NVFP4:
            blocks[:, : block // 16] = 0x18
        else:
            blocks[:, :2] = scale
        return blocks.reshape(rows, -1)

    return make


READ = [k for k in Kind if k.name[:2] in ("IQ", "TQ") or k.name in ("MXFP4", "NVFP4")]


@pytest.mark.parametrize("kind", READ, ids=lambda k: k.name)
def test_every_type_of_the_gguf_package_runs_as_it_is(tmp_path: Path, kind: Kind) -> None:
    hp = tiny_hparams("llama", n_embd=N, n_ff=N, n_layer=1)
    model = architecture("llama")(hp)
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    dtype = dtype_by_id(int(kind))
    assert dtype is not None and (dtype.block, dtype.nbytes) == (block, nbytes)
    values = tiny_weights(model)
    name = "blk.0.ffn_up.weight"
    blocks = _random_blocks(kind, hp.n_ff)(np.random.default_rng(7))
    values[name] = gguf.quants.dequantize(blocks, kind).astype(np.float32)
    assert np.isfinite(values[name]).all()
    assert values[name].std() > 1e-4

    tensors: dict[str, Any] = {n: (F32, a.shape, a) for n, a in values.items()}
    plain, path = tmp_path / "plain.gguf", tmp_path / "m.gguf"
    write_gguf(plain, dict(metadata(model)), tensors)
    tensors[name] = (dtype, values[name].shape, blocks)
    write_gguf(path, dict(metadata(model)), tensors)

    assert open_model(path).notes == ()
    found, expected = Model.load(path).logits(IDS), Model.load(plain).logits(IDS)
    assert ((found - expected) ** 2).sum() / (expected**2).sum() < 1e-3


@pytest.mark.parametrize(
    ("name", "kind"), [("blk.0.ffn_up.weight", Kind.I32), ("blk.1.ffn_norm.weight", Kind.I8),
                       ("blk.0.attn_k.weight", Kind.Q8_1)],
)  # fmt: skip
def test_a_type_that_holds_no_weights_is_named(tmp_path: Path, name: str, kind: Kind) -> None:
    weights = model_weights()
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    tensors: dict[str, Any] = {n: (F32, a.shape, a) for n, a in weights.items()}
    size = weights[name].size // block * nbytes
    dtype = UnsupportedType(kind.name.lower(), int(kind), block, nbytes)
    tensors[name] = (dtype, weights[name].shape, bytes(size))
    path = tmp_path / "m.gguf"
    model = architecture("llama")(tiny_hparams("llama"))
    write_gguf(path, dict(metadata(model)), tensors)
    with pytest.raises(ModelError, match=f"{name}.*{kind.name.lower()}"):
        open_model(path)


def test_rows_no_q8_0_block_divides_become_f16(tmp_path: Path) -> None:
    # f64 has no kernels either, and blocks of one.
    from gguflow.engine.graph import F64

    hp = tiny_hparams("llama", n_ff=88)
    model = architecture("llama")(hp)
    values = tiny_weights(model)
    name = "blk.0.ffn_down.weight"
    tensors: dict[str, Any] = {n: (F32, a.shape, a) for n, a in values.items()}
    tensors[name] = (F64, values[name].shape, values[name].astype(np.float64))
    path = tmp_path / "m.gguf"
    write_gguf(path, dict(metadata(model)), tensors)
    (note,) = open_model(path).notes
    assert "f64 are dequantized to f16" in note
    assert np.isfinite(Model.load(path).logits(IDS)).all()
