"""`gguflow quantize`: the types llama-quantize chooses, whole files, and what it refuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import one_line_error
from gguf.constants import GGMLQuantizationType, LlamaFileType
from gguf.quants import quantize as gguf_quantize
from tiny_model import write_tiny

from gguflow.cli.quantize import derived_name
from gguflow.engine.gguf import GgufFile, Typed, write_gguf
from gguflow.engine.graph import F32
from gguflow.engine.model import Model
from gguflow.engine.quantize import plan_changes
from gguflow.models.mixes import MIXES

Call = Callable[..., tuple[int, str, str]]
IDS = [1, 10, 20, 30, 40, 50]

# -- the mixes -------------------------------------------------------------------------------------

# What llama-quantize (llama.cpp with ggml 0.25.3) makes of attn_v, attn_output and ffn_down in each
# of 18 layers with four query heads a KV head, as the N of qN_K; all other matrices get the base.
K_MIXES = {
    "Q2_K": ("2", "4" * 18, "3" * 18, "3" * 18),
    "Q3_K_S": ("3", "3" * 18, "3" * 18, "3" * 18),
    "Q3_K_M": ("3", "554444444444444444", "4" * 18, "544444444444444444"),
    "Q3_K_L": ("3", "5" * 18, "5" * 18, "5" * 18),
    "Q4_K_S": ("4", "555544444444444444", "4" * 18, "554444444444444444"),
    "Q4_K_M": ("4", "664464464464464666", "4" * 18, "664464464464464666"),
    "Q5_K_S": ("5", "5" * 18, "5" * 18, "5" * 18),
    "Q5_K_M": ("5", "665565565565565666", "5" * 18, "665565565565565666"),
    "Q6_K": ("6", "6" * 18, "6" * 18, "6" * 18),
}
# The same for attn_v of 80 layers with eight query heads a KV head.
MIXES_OF_80 = {
    "Q2_K": "5" * 80,
    "Q3_K_S": "5" * 80,
    "Q3_K_M": "5" * 80,
    "Q4_K_S": "5" * 80,
    "Q4_K_M": "6" * 10 + "556" * 19 + "55" + "6" * 11,
    "Q4_0": "",
}
BASE = ("attn_q", "attn_k", "ffn_gate", "ffn_up")


def names_file(path: Path, n_layer: int, heads: int, heads_kv: int, tied: bool, n: int) -> GgufFile:
    """A file with a llama's tensor names, of two rows each: enough to choose types by."""
    parts = (*BASE, "attn_v", "attn_output", "ffn_down")
    names = [f"blk.{i}.{p}.weight" for i in range(n_layer) for p in parts]
    names += ["token_embd.weight", *([] if tied else ["output.weight"])]
    tensors: dict[str, Any] = {x: (F32, (2, n), bytes(8 * n)) for x in names}
    tensors |= {f"blk.{i}.attn_norm.weight": (F32, (n,), bytes(4 * n)) for i in range(n_layer)}
    keys = {
        "general.architecture": "llama", "llama.block_count": n_layer,
        "llama.attention.head_count": heads, "llama.attention.head_count_kv": heads_kv,
    }  # fmt: skip
    write_gguf(path, keys, tensors)
    return GgufFile.open(path)


def chosen(file: GgufFile, mix: str, pure: bool = False) -> dict[str, str]:
    return {c.info.name: c.target.name for c in plan_changes(file, mix, pure)}


def layers(types: dict[str, str], part: str, n_layer: int) -> str:
    found = [types[f"blk.{i}.{part}.weight"] for i in range(n_layer)]
    return "".join(t[1] for t in found if t.endswith("_K"))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("mix", K_MIXES)
def test_k_mixes_are_llama_cpps(tmp_path: Path, mix: str, tied: bool) -> None:
    base, v, o, down = K_MIXES[mix]
    types = chosen(names_file(tmp_path / "m.gguf", 18, 8, 2, tied, 256), mix)
    assert {types[f"blk.{i}.{p}.weight"] for i in range(18) for p in BASE} == {f"q{base}_K"}
    assert [layers(types, p, 18) for p in ("attn_v", "attn_output", "ffn_down")] == [v, o, down]
    assert types["token_embd.weight"] == ("q6_K" if tied else f"q{base}_K")
    assert types.get("output.weight") == (None if tied else "q6_K")
    assert types["blk.0.attn_norm.weight"] == "f32"


def test_fewer_query_heads_a_kv_head(tmp_path: Path) -> None:
    types = chosen(names_file(tmp_path / "m.gguf", 18, 8, 4, False, 256), "Q2_K")
    assert layers(types, "attn_v", 18) == "3" * 18


@pytest.mark.parametrize("mix", MIXES_OF_80)
def test_models_of_80_layers(tmp_path: Path, mix: str) -> None:
    types = chosen(names_file(tmp_path / "m.gguf", 80, 8, 1, False, 256), mix)
    assert layers(types, "attn_v", 80) == MIXES_OF_80[mix]


@pytest.mark.parametrize("mix", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16", "F32"])
def test_plain_types(tmp_path: Path, mix: str) -> None:
    types = chosen(names_file(tmp_path / "m.gguf", 2, 8, 2, False, 256), mix)
    head = {"Q8_0": "q8_0", "F16": "f16", "BF16": "bf16", "F32": "f32"}.get(mix, "q6_K")
    assert types.pop("output.weight") == head
    assert {t for n, t in types.items() if "norm" not in n} == {mix.lower()}


def test_pure_is_one_type_for_all(tmp_path: Path) -> None:
    types = chosen(names_file(tmp_path / "m.gguf", 4, 8, 2, False, 256), "Q4_K_M", pure=True)
    assert {t for n, t in types.items() if "norm" not in n} == {"q4_K"}


@pytest.mark.parametrize(
    ("mix", "n", "base", "head"),
    [("Q2_K", 192, "q4_0", "q8_0"), ("Q3_K_S", 192, "q4_0", "q8_0"),
     ("Q4_K_S", 192, "q5_0", "q8_0"), ("Q5_K_S", 192, "q5_1", "q8_0"),
     ("Q6_K", 192, "q8_0", "q8_0"), ("Q4_0", 192, "q4_0", "q8_0"),
     ("Q4_0", 172, "f16", "f16"), ("Q6_K", 172, "f16", "f16")],
)  # fmt: skip
def test_rows_no_block_divides(tmp_path: Path, mix: str, n: int, base: str, head: str) -> None:
    types = chosen(names_file(tmp_path / "m.gguf", 8, 8, 2, False, n), mix)
    assert types["blk.5.attn_q.weight"] == base
    assert types["output.weight"] == head


# -- files -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose rows every type divides, in F32."""
    keys = {
        "general.file_type": 0,
        "custom.u8": Typed("u8", 7),
        "custom.list": Typed("arr[f64]", [0.5, 1.5]),
        "custom.text": "über",
    }
    return write_tiny(
        tmp_path_factory.mktemp("m") / "model-f32.gguf", n_embd=256, n_ff=256, keys=keys, n_layer=1
    )


@pytest.mark.parametrize("mix", MIXES)
def test_every_type_writes_a_model_that_runs(
    call: Call, model: Path, tmp_path: Path, mix: str
) -> None:
    out = tmp_path / "out.gguf"
    code, stdout, err = call("quantize", str(model), str(out), mix)
    assert (code, stdout) == (0, "")
    assert f"wrote {out}" in err
    with GgufFile.open(model) as before, GgufFile.open(out) as after:
        extra = {"general.quantization_version": "u32"}
        assert after.types == {**before.types, **extra}
        for key in before.metadata.keys() - {"general.file_type"}:
            assert np.array_equal(after.metadata[key], before.metadata[key]), key
        name = "ALL_F32" if mix == "F32" else f"MOSTLY_{mix}"
        assert after.metadata["general.file_type"] == LlamaFileType[name]
        assert after.metadata["general.quantization_version"] == 2
        planned = {c.info.name: c.target for c in plan_changes(before, mix)}
        assert {n: t.dtype for n, t in after.tensors.items()} == planned
        shapes = {n: t.shape for n, t in before.tensors.items()}
        assert {n: t.shape for n, t in after.tensors.items()} == shapes
        size = sum(t.nbytes for t in after.tensors.values())
    assert f"{size / 2**20:.2f} MiB" in err
    found, expected = Model.load(out).logits(IDS), Model.load(model).logits(IDS)
    error = ((found - expected) ** 2).sum() / (expected**2).sum()
    limits = {"Q2": 0.6, "Q3": 0.3, "Q4": 0.1, "Q5": 0.03, "Q6": 0.01, "Q8": 1e-3, "IQ": 0.1,
              "MX": 1e-3, "TQ": 3.0}  # fmt: skip
    assert error < limits.get(mix[:2], 1e-4)


@pytest.mark.parametrize("name", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_bytes_are_those_of_the_gguf_package(
    call: Call, model: Path, tmp_path: Path, name: str
) -> None:
    out = str(tmp_path / "out.gguf")
    assert call("quantize", "--pure", str(model), out, name)[0] == 0
    with GgufFile.open(model) as before, GgufFile.open(out) as after:
        for n, info in after.tensors.items():
            if info.dtype.name == name.lower():
                expected = gguf_quantize(before.array(n), GGMLQuantizationType[name])
                assert np.array_equal(after.data(n), expected.reshape(-1).view(np.uint8)), n


def test_threads_do_not_change_the_bytes(call: Call, model: Path, tmp_path: Path) -> None:
    files = []
    for words in (["-t", "1"], ["-t", "3"]):
        out = tmp_path / f"{words[-1]}.gguf"
        assert call("quantize", str(model), str(out), "Q4_K_M", *words)[0] == 0
        files.append(out.read_bytes())
    assert call("quantize", str(model), str(tmp_path / "word.gguf"), "q4_k_m", "2")[0] == 0
    assert files[0] == files[1] == (tmp_path / "word.gguf").read_bytes()


def test_large_tensors_go_in_slabs(
    call: Call, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, slabs = tmp_path / "whole.gguf", tmp_path / "slabs.gguf"
    assert call("quantize", str(model), str(whole), "Q4_K_M")[0] == 0
    monkeypatch.setattr("gguflow.engine.requantize.SLAB_BYTES", 7 * 4 * 256)
    assert call("quantize", str(model), str(slabs), "Q4_K_M")[0] == 0
    assert whole.read_bytes() == slabs.read_bytes()


def test_from_f16_as_from_its_values(call: Call, model: Path, tmp_path: Path) -> None:
    f16, f32, a, b = (str(tmp_path / f"{n}.gguf") for n in ("f16", "f32", "a", "b"))
    assert call("quantize", str(model), f16, "F16")[0] == 0
    assert call("quantize", f16, f32, "F32")[0] == 0
    assert call("quantize", f16, a, "Q4_K_M")[0] == 0
    assert call("quantize", f32, b, "Q4_K_M")[0] == 0
    assert Path(a).read_bytes() == Path(b).read_bytes()


def test_shards_become_one_file(call: Call, model: Path, tmp_path: Path) -> None:
    with GgufFile.open(model) as f:
        names = list(f.tensors)
        for i, part in enumerate((names[:4], names[4:])):
            keys = f.typed_metadata() if i == 0 else {}
            split = {"split.no": Typed("u16", i), "split.count": Typed("u16", 2),
                     "split.tensors.count": Typed("i32", len(names))}  # fmt: skip
            tensors = {n: (f.tensors[n].dtype, f.tensors[n].shape, f.data(n)) for n in part}
            write_gguf(tmp_path / f"s-0000{i + 1}-of-00002.gguf", {**keys, **split}, tensors)
    whole, joined = tmp_path / "whole.gguf", tmp_path / "joined.gguf"
    first = str(tmp_path / "s-00001-of-00002.gguf")
    assert call("quantize", str(model), str(whole), "Q8_0")[0] == 0
    assert call("quantize", first, str(joined), "Q8_0")[0] == 0
    assert whole.read_bytes() == joined.read_bytes()
    code, _, err = call("quantize", first, str(tmp_path / "s-00002-of-00002.gguf"), "Q8_0")
    assert code == 2
    assert "same file" in one_line_error(err)


def test_chosen_types(call: Call, model: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "o.gguf")
    words = ["--tensor-type", r"attn_[qk]=q8_0", "--keep", "ffn_up=same", "--leave-output-tensor"]
    assert call("quantize", *words, str(model), out, "Q4_0")[0] == 0
    with GgufFile.open(out) as f:
        types = {n: t.dtype.name for n, t in f.tensors.items()}
    assert types["blk.0.attn_q.weight"] == types["blk.0.attn_k.weight"] == "q8_0"
    assert types["blk.0.attn_v.weight"] == "q4_0"
    assert types["blk.0.ffn_up.weight"] == types["output.weight"] == "f32"


def test_the_name_of_the_output(call: Call, model: Path) -> None:
    code, _, err = call("quantize", str(model), "q4_0")
    assert code == 0
    out = model.with_name("model-Q4_0.gguf")
    assert f"wrote {out}" in err
    assert out.is_file()
    out.unlink()


@pytest.mark.parametrize(
    ("source", "expected"),
    [("a/m.gguf", "a/m-Q8_0.gguf"), ("m-F16.gguf", "m-Q8_0.gguf"), ("m.f32.gguf", "m-Q8_0.gguf"),
     ("m-Q4_K_M.gguf", "m-Q8_0.gguf"), ("m-IQ4_NL.gguf", "m-Q8_0.gguf"), ("m", "m-Q8_0.gguf"),
     ("llama-3.2-1b.gguf", "llama-3.2-1b-Q8_0.gguf"),
     ("m-bf16-00001-of-00003.gguf", "m-Q8_0.gguf")],
)  # fmt: skip
def test_derived_names(source: str, expected: str) -> None:
    assert derived_name(source, "Q8_0") == str(Path(expected))


def test_types_by_number(call: Call, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.gguf"
    assert call("quantize", str(model), str(out), "15", "1")[0] == 0
    with GgufFile.open(out) as f:
        assert f.metadata["general.file_type"] == LlamaFileType.MOSTLY_Q4_K_M


def test_verbose_lists_every_tensor_once(call: Call, model: Path, tmp_path: Path) -> None:
    for extra in ([], ["--dry-run"]):
        out = tmp_path / f"o{len(extra)}.gguf"
        _, _, err = call("quantize", "-v", *extra, str(model), str(out), "Q4_0")
        with GgufFile.open(model) as f:
            for i, name in enumerate(f.tensors):
                (line,) = (x for x in err.splitlines() if f" {name} " in x)
                assert line.startswith(f"[{i + 1:4d}/{len(f.tensors):4d}]")
        assert out.exists() is not bool(extra)
        assert "output.weight" in err and "f32 -> q6_K" in err and "f32 kept" in err


# -- refusals --------------------------------------------------------------------------------------


def test_over_itself(call: Call, model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    link = tmp_path / "link.gguf"
    os.link(model, link)
    for out in (model, link, model.parent / ".." / model.parent.name / model.name):
        code, _, err = call("quantize", str(model), str(out), "Q4_0")
        assert code == 2
        assert "input and output are the same file" in one_line_error(err)
    assert model.read_bytes() == before


def test_quantized_already(call: Call, model: Path, tmp_path: Path) -> None:
    q8, out = str(tmp_path / "q8.gguf"), tmp_path / "out.gguf"
    assert call("quantize", str(model), q8, "Q8_0")[0] == 0
    code, _, err = call("quantize", q8, str(out), "Q4_0")
    message = one_line_error(err)
    assert code == 2
    assert q8 in message and "q8_0 already" in message and "--allow-requantize" in message
    assert not out.exists()
    assert call("quantize", "--allow-requantize", q8, str(out), "Q4_0")[0] == 0
    # The same type again changes nothing, so nobody needs to allow it.
    again = tmp_path / "again.gguf"
    assert call("quantize", q8, str(again), "Q8_0")[0] == 0
    assert again.read_bytes() == Path(q8).read_bytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("mix", ["Q4_0", "Q4_K_M", "F16"])
def test_values_a_type_cannot_hold(call: Call, tmp_path: Path, value: float, mix: str) -> None:
    name = "blk.0.ffn_up.weight"
    bad = np.zeros((256, 256), np.float32)
    bad[3, 5] = value
    path = write_tiny(tmp_path / "m.gguf", n_embd=256, n_ff=256, n_layer=1, weights={name: bad})
    out = tmp_path / "o.gguf"
    code, _, err = call("quantize", str(path), str(out), mix)
    message = one_line_error(err)
    assert code == 3
    assert name in message and str(path) in message
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf"]  # no half file is left


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [(["IN"], 2, "expected IN.gguf [OUT.gguf] TYPE"),
     (["IN", "out.gguf"], 2, "unknown quantization 'out.gguf'; have F32, F16"),
     (["IN", "OUT", "Q4_9"], 2, "unknown quantization 'Q4_9'"),
     (["IN", "OUT", "Q4_0", "0"], 2, "THREADS 0"),
     (["IN", "OUT", "Q4_0", "-t", "0"], 2, "-t/--threads"),
     (["IN", "OUT", "x", "Q4_0"], 2, "expected IN.gguf [OUT.gguf] TYPE"),
     (["--tensor-type", "a", "IN", "OUT", "Q4_0"], 2, "expected REGEX=TYPE"),
     (["--tensor-type", "(=q8_0", "IN", "OUT", "Q4_0"], 2, "(=q8_0"),
     (["--tensor-type", "a=iq2_xs", "IN", "OUT", "Q4_0"], 2, "iq2_xs: no type to write; have bf16"),
     (["/nowhere/m.gguf", "OUT", "Q4_0"], 3, "/nowhere/m.gguf"),
     (["IN", "/nowhere/o.gguf", "Q4_0"], 3, "/nowhere/o.gguf"),
     (["IN", "DIR", "Q4_0"], 3, "a directory")],
)  # fmt: skip
def test_bad_arguments(
    call: Call, model: Path, tmp_path: Path, words: list[str], code: int, expected: str
) -> None:
    places = {"IN": str(model), "OUT": str(tmp_path / "o.gguf"), "DIR": str(tmp_path)}
    found, stdout, err = call("quantize", *(places.get(w, w) for w in words))
    assert (found, stdout) == (code, "")
    assert expected in one_line_error(err)
    assert list(tmp_path.iterdir()) == []
