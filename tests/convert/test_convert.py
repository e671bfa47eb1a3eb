"""`gguflow convert`: transformers' own logits, its tokenizer, files that are broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from gguflow.cli.main import main
from gguflow.engine.convert import ConvertError, convert
from gguflow.engine.convert.checkpoint import Checkpoint
from gguflow.engine.convert.families import FAMILIES
from gguflow.engine.convert.families_experts import _gpt_oss_tensors
from gguflow.engine.convert.mxfp4 import mxfp4
from gguflow.engine.convert.pretokenizer import PROBE, pre_tokenizer_of
from gguflow.engine.gguf import GgufFile
from gguflow.engine.graph import F32
from gguflow.engine.model import Model
from gguflow.engine.quants import decode
from gguflow.models.base import architectures
from gguflow.models.tokenizer import Tokenizer
from gguflow.models.tokenizer.pretokenizers import PRE_TOKENIZERS

DATA = Path(__file__).parent / "data"
NAMES = [
    "llama", "falcon40", "ernie45", "gemma2", "mixtral", "gpt_oss", "dsv3", "glm4moe",
    "qwen3next", "qwen35", "mamba2", "gemma4", "gemma4moe", "gptneox", "opt", "baichuan", "chatglm",
    "minicpm", "ernie45moe", "phi3long", "dsv3fp8", "llamafp8", "qwen3fp8",
    "dsv3yarn", "dsv2yarn", "qwen2moestep", "qwen3moelist", "ernieinterval", "llamayarn",
    "stablelm12b",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_transformers(
    checkpoint: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    convert(checkpoint(name), tmp_path / "m.gguf", "f32")
    assert error(tmp_path / "m.gguf", name) < 1e-6


def error(path: Path, name: str) -> float:
    """NMSE of a file's logits against those that transformers gave for the checkpoint."""
    want = np.load(DATA / name / "want.npz")
    found = Model.load(path, k_type=F32, v_type=F32).logits(want["ids"].tolist())[::4]
    expected = want["logits"]
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dsv3yarn", {"rope_interleave": True}),
        ("dsv3yarn", {"mscale": 0.5}),
        ("dsv3yarn", {"mscale_all_dim": 1.0}),
        ("dsv2yarn", {"mscale": 0.9}),
        ("dsv2yarn", {"mscale": None, "mscale_all_dim": None}),
        ("llamayarn", {"mscale": 0.5}),
        ("llamayarn", {"attention_factor": 1.5}),
        ("stablelm12b", {"partial_rotary_factor": 0.5}),
        ("llamayarn", {"factor": None, "max_position_embeddings": 256}),
    ],
)
def test_the_logits_tell_apart(
    checkpoint: Callable[[str], Path], tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    """What a number of the configuration changes is more than the error allowed."""
    source = checkpoint(name)
    rope = json.loads((source / "config.json").read_text())["rope_parameters"]
    new = {k: v for k, v in (rope | changes).items() if v is not None}
    edit(source / "config.json", rope_parameters=new, **changes)
    convert(source, tmp_path / "m.gguf", "f32")
    assert error(tmp_path / "m.gguf", name) > 1e-5


def test_types_and_the_command(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    source = str(checkpoint("llama"))
    for out_type, matrix in (("auto", "bf16"), ("f16", "f16"), ("q8_0", "q8_0")):
        out = tmp_path / f"{out_type}.gguf"
        assert main(["convert", source, str(out), "--outtype", out_type]) == 0
        with GgufFile.open(out) as f:
            assert f.tensors["blk.0.ffn_up.weight"].dtype.name == matrix
            assert f.tensors["blk.0.attn_norm.weight"].dtype.name == "f32"
            assert f.metadata["general.architecture"] == "llama"
    assert main(["convert", str(tmp_path / "none"), str(tmp_path / "x.gguf")]) == 3


def test_the_tokenizer_is_theirs(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    source, out = checkpoint("llama"), tmp_path / "m.gguf"
    convert(source, out)
    theirs = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    ours = Tokenizer.load(out)
    for text in ("Once upon a time, there were 12345 cats!", "naïve\n\n  été 中文", ""):
        assert ours.encode(text) == theirs.encode(text).ids
    assert ours.encode("a<|eot_id|>", parse_special=True)[-1] == theirs.token_to_id("<|eot_id|>")
    with GgufFile.open(out) as f:
        assert f.metadata["tokenizer.ggml.pre"] == "llama-bpe"
        assert f.metadata["tokenizer.chat_template"] == "{{ messages[0].content }}"


# Written in another way, they are the rules of Qwen 2 and of LLaMA 3.
SAME = ("bailingmoe", "bailingmoe2", "llada-moe", "minicpm5")


# Each rules once, by the first of their names; with the others it is the same again.
FIRST = {p: n for n, p in sorted(PRE_TOKENIZERS.items(), reverse=True) if not p.raw}


@pytest.mark.parametrize("name", [
    pytest.param(n, marks=[] if FIRST[p] == n else pytest.mark.slow)
    for n, p in sorted(PRE_TOKENIZERS.items()) if not p.raw
])  # fmt: skip
def test_pre_tokenizers_are_told_apart(tmp_path: Path, name: str) -> None:
    """By what they do: the rules found are those of the name."""
    rules = PRE_TOKENIZERS[name]
    splits = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in rules.patterns
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False}  # fmt: skip
    values = {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, level]},
        "model": {"ignore_merges": rules.ignore_merges},
    }
    found = PRE_TOKENIZERS[pre_tokenizer_of(tmp_path, values)]
    assert found.ignore_merges == rules.ignore_merges
    same = found.splitter().pre_tokenize_str(PROBE) == rules.splitter().pre_tokenize_str(PROBE)
    assert found.patterns == rules.patterns or (same and name in SAME)


def test_an_unknown_pre_tokenizer_is_refused(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    source = checkpoint("llama")
    path = source / "tokenizer.json"
    values = json.loads(path.read_text())
    values["pre_tokenizer"] = {"type": "Whitespace"}
    path.write_text(json.dumps(values))
    with pytest.raises(ConvertError, match="tokenizer.json: its pre-tokenizer is none"):
        convert(source, tmp_path / "m.gguf")
    convert(source, tmp_path / "m.gguf", pre="llama-bpe")


def test_every_family_is_an_architecture() -> None:
    assert {f.arch for f in FAMILIES} <= set(architectures())


def edit(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (values | changes).items() if v is not None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["NoSuchModel"]}, "architecture 'NoSuchModel' is not supported; have"),
        ({"architectures": None}, "architectures is"),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4', expected a number"),
        ({"vocab_size": 1 << 31}, "vocab_size is"),
        ({"num_hidden_layers": 1 << 20}, "1048576 layers, expected at most"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"hidden_size": float("inf")}, "hidden_size is inf"),
        ({"rms_norm_eps": {}}, "config.json: a value that cannot be used: TypeError"),
        ({"num_hidden_layers": 3}, "tensor blk.2.attn_norm.weight is missing"),
        ({"num_hidden_layers": 1}, "llama has no such weight"),
        ({"hidden_size": 64}, "expected|for|layers"),
        ({"query_pre_attn_scalar": 7, "architectures": ["Gemma2ForCausalLM"]}, "is not head_dim"),
        ({"rope_parameters": {"rope_type": "odd", "rope_theta": 1e4}}, "rope_type 'odd'"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": False}},
            "truncate: false is not supported",
        ),
    ],
)
def test_configurations_that_do_not_fit(
    checkpoint: Callable[[str], Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    source = checkpoint("llama")
    edit(source / "config.json", **changes)
    with pytest.raises(ConvertError, match=message):
        convert(source, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("chat_template.jinja", "can't decode byte 0xff"),
        ("merges", "merges are no pairs of tokens"),
        ("id", "has the id 16777216, expected"),
    ],
)
def test_tokenizers_that_are_none(
    checkpoint: Callable[[str], Path], tmp_path: Path, file: str, what: str
) -> None:
    source = checkpoint("llama")
    path = source / "tokenizer.json"
    values = json.loads(path.read_text())
    if file == "merges":
        values["model"]["merges"] = [["a", 1.0]]
    elif file == "id":
        values["model"]["vocab"]["zz"] = 1 << 24
    else:
        (source / file).write_bytes(b"\xff")
    path.write_text(json.dumps(values))
    with pytest.raises(ConvertError, match=what):
        convert(source, tmp_path / "m.gguf")


def test_prefix_models(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """transformers' `is_causal`: a prompt's tokens see each other; where that cannot be, it is
    refused and not left out."""
    source = checkpoint("llama")
    edit(source / "config.json", is_causal=False)
    convert(source, tmp_path / "m.gguf", "f32")
    with GgufFile.open(tmp_path / "m.gguf") as f:
        assert f.metadata["llama.attention.causal"] is False
    assert error(tmp_path / "m.gguf", "llama") > 1e-3
    for name, change, what in (
        ("qwen35", {"is_causal": False}, "recurrent layers"),
        ("gemma2", {"use_bidirectional_attention": True}, "sliding windows"),
    ):
        source = checkpoint(name)
        edit(source / "config.json", **change)
        with pytest.raises(ConvertError, match=f"attention.causal: false; {what} in both"):
            convert(source, tmp_path / "q.gguf")


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0,
        "original_max_position_embeddings": 16}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 0}, "factor is 0.0, expected a number above 0"),
        ({"factor": "8"}, "factor is '8'"),
        ({"factor": None, "original_max_position_embeddings": 0}, "factor is 0.0"),
        ({"mscale": [1]}, r"mscale is \[1\]"),
        ({"mscale_all_dim": -1, "mscale": 1}, "mscale_all_dim is -1"),
        ({"attention_factor": True}, "attention_factor is True"),
        ({"beta_fast": float("nan")}, "beta_fast is nan"),
        ({"attention_factor": 0}, "is not supported, GGUF has no keys for it"),
        ({"mscale": 2.0, "mscale_all_dim": 0.0, "attention_factor": 1.0}, "GGUF has no keys for"),
    ],
)
def test_stretches_that_are_none(
    checkpoint: Callable[[str], Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    source = checkpoint("dsv3yarn")
    edit(source / "config.json", rope_parameters=YARN | changes)
    with pytest.raises(ConvertError, match=f"config.json: .*{message}"):
        convert(source, tmp_path / "m.gguf")


def header(path: Path) -> tuple[dict[str, Any], bytes]:
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + n]), raw[8 + n :]


def write_header(path: Path, values: dict[str, Any], data: bytes) -> None:
    text = json.dumps(values).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize("field", ["dtype", "shape", "data_offsets"])
@pytest.mark.parametrize("value", [None, -1, "F8", [], [1 << 60, 2], [[1], 2], {}, [-4, 8]])
def test_broken_headers_are_named(
    checkpoint: Callable[[str], Path], tmp_path: Path, field: str, value: Any
) -> None:
    source = checkpoint("llama")
    path = source / "model-00001-of-00002.safetensors"
    values, data = header(path)
    name = next(n for n in values if n != "__metadata__")
    values[name][field] = value
    write_header(path, values, data)
    with pytest.raises(ConvertError, match="model-00001-of-00002"):
        convert(source, tmp_path / "m.gguf")


@pytest.mark.parametrize("length", [0, 7, 8, 100])
def test_files_that_are_cut_off(
    checkpoint: Callable[[str], Path], tmp_path: Path, length: int
) -> None:
    source = checkpoint("llama")
    path = source / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ConvertError, match="model-00002-of-00002.safetensors: "):
        convert(source, tmp_path / "m.gguf")


def test_an_index_that_leads_elsewhere(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    source = checkpoint("llama")
    index = source / "model.safetensors.index.json"
    edit(index, weight_map={"a": "../secret.safetensors"})
    with pytest.raises(ConvertError, match="is no file of the directory"):
        convert(source, tmp_path / "m.gguf")
    edit(index, weight_map={"a": "model-00001-of-00002.safetensors"})
    with pytest.raises(ConvertError, match="a is missing"):
        convert(source, tmp_path / "m.gguf")


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header, at = {}, 0
    for name, x in tensors.items():
        kind = {"uint8": "U8", "float32": "F32"}[x.dtype.name]
        header[name] = {
            "dtype": kind, "shape": list(x.shape), "data_offsets": [at, at + x.nbytes],
        }  # fmt: skip
        at += x.nbytes
    text = json.dumps(header).encode()
    parts = (np.ascontiguousarray(x).tobytes() for x in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def test_mxfp4_stays_what_it_is(tmp_path: Path) -> None:
    """Codes of neighbours in a byte, the first in its low half, and exponents beside them."""
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, (3, 8, 2, 32))
    scales = rng.integers(120, 132, (3, 8, 2)).astype(np.uint8)
    blocks = (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)
    want = values[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]
    (tmp_path / "config.json").write_text("{}")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {f"{name}_blocks": blocks, f"{name}_scales": scales}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    source = Checkpoint(tmp_path)
    w = mxfp4(f"{name}_blocks", source)
    assert (w.name, w.dtype.name, w.shape) == (name, "mxfp4", (3, 8, 64))
    assert np.array_equal(decode(w.dtype, w.make(), w.shape), want.reshape(3, 8, 64))
    gate, up = _gpt_oss_tensors(source.config, w)
    assert (gate.name, gate.shape) == ("model.layers.0.mlp.experts.gate_proj.weight", (3, 4, 64))
    for part, at in ((gate, 0), (up, 1)):
        found = decode(part.dtype, part.make(), part.shape)
        assert np.array_equal(found, want.reshape(3, 8, 64)[:, at::2])
    write_safetensors(tmp_path / "model.safetensors", {f"{name}_blocks": blocks})
    with pytest.raises(ConvertError, match="has no exponents"):
        mxfp4(f"{name}_blocks", Checkpoint(tmp_path))


def test_layers_that_guess_ahead_are_left_out(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    source = checkpoint("glm4moe")
    edit(source / "config.json", num_hidden_layers=2, first_k_dense_replace=1)
    convert(source, tmp_path / "m.gguf", "f32")
    with GgufFile.open(tmp_path / "m.gguf") as f:
        assert f.metadata["glm4moe.block_count"] == 2
        assert not any(name.startswith("blk.2.") for name in f.tensors)


def test_norms_of_heads_are_counted(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    source = checkpoint("stablelm12b")
    path = source / "model.safetensors"
    values, data = header(path)
    name = "model.layers.1.self_attn.q_layernorm.norms.2.weight"
    write_header(path, {k: v for k, v in values.items() if k != name}, data)
    with pytest.raises(ConvertError, match=r"layers\.1.*q_layernorm.weight: number 2 is missing"):
        convert(source, tmp_path / "m.gguf")
    last = "model.layers.1.self_attn.q_layernorm.norms.3.weight"
    write_header(path, {k: v for k, v in values.items() if k not in (name, last)}, data)
    with pytest.raises(ConvertError, match=r"attn_q_norm.weight: \[2, 8\] for \[4, 8\]"):
        convert(source, tmp_path / "m.gguf")


def test_a_parallel_model_has_no_second_norm(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    convert(checkpoint("stablelm12b"), tmp_path / "m.gguf")
    with GgufFile.open(tmp_path / "m.gguf") as f:
        assert f.tensors["blk.0.attn_k_norm.weight"].shape == (2, 8)
        assert f.tensors["blk.0.attn_k_norm.weight"].dtype.name == "f32"
        assert "blk.0.ffn_norm.weight" not in f.tensors
        assert f.metadata["stablelm.use_parallel_residual"]
