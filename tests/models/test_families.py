"""Families against the logits their publishers' own code gives, and what only some of them have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from reference_families import FAMILIES, reference
from tiny_model import tiny_hparams, tiny_weights, write_tiny

from gguflow.engine.gguf import UnsupportedType, write_gguf
from gguflow.engine.graph import dtype_by_name
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.plan_key import PlanKey
from gguflow.engine.quants import encode
from gguflow.models.base import Architecture, ModelError, architecture
from gguflow.models.decoder import Decoder

BAR = 1e-5  # NMSE of the logits
F32 = dtype_by_name("f32")
IDS = [int(i) for i in np.random.default_rng(5).integers(0, 96, 40)]


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


def run(path: Path, ids: Sequence[int], **options: Any) -> np.ndarray:
    kept = {"n_threads": 1, "k_type": F32, "v_type": F32}
    return Model.load(path, Options(**kept | options)).logits(ids)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_publishers(architectures_data: Path, family: str, backend: str) -> None:
    path, ids, expected = reference(architectures_data, family)
    assert nmse(run(path, ids, backends=(backend,)), expected) <= BAR
    if backend == "cpu":
        for n in (1, 7):  # token by token, and in pieces that cross windows
            assert nmse(run(path, ids, n_ubatch=n), expected) <= BAR
        assert Model.load(path).tokenizer.n_vocab == expected.shape[1]


# -- Gemma 2 ---------------------------------------------------------------------------------------


def test_gemma2_across_windows_in_any_pieces(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "gemma2", optional=())
    expected = run(path, IDS, backends=("numpy",))
    for n in (1, 5, 16, 40):
        assert nmse(run(path, IDS, n_ubatch=n), expected) <= 1e-6
    assert nmse(run(path, IDS, fuse=False), expected) <= 1e-6


def test_gemma2_layers_take_turns(tmp_path: Path) -> None:
    model = Model.load(write_tiny(tmp_path / "m.gguf", "gemma2", n_layer=3))
    layers = [model.arch.cache(i) for i in range(3)]
    assert [layer.window for layer in layers if layer] == [8, 0, 8]
    leaves = model.graph(PlanKey(0, 3, 1, 1)).leaves
    assert {"table.full", "table.window8", "rows.full", "rows.window8"} <= leaves.keys()


def test_gemma2_is_fused_around_its_norms(tmp_path: Path) -> None:
    # What a block gives is normed before it joins the residual stream, so no product ends in it.
    model = Model.load(write_tiny(tmp_path / "m.gguf", "gemma2"))
    ops = Counter(node.op for node in model.plan(PlanKey(1, 0, 1, 1)).nodes)
    assert ops["mul_mat_geglu"] == 2 and ops["add"] == 4 and ops["rms_norm_mul"] == 9
    assert not ops.keys() & {"mul_mat_add", "gelu", "rms_norm"}


# Each of these is one number of Gemma 2, and the result without it.
@pytest.mark.parametrize(
    "changes",
    [{"attn_softcap": 0.0}, {"logit_softcap": 0.0}, {"sliding_window": 0}, {"sliding_window": 9}],
    ids=str,
)
def test_gemma2_has_its_numbers_from_the_file(tmp_path: Path, changes: dict[str, Any]) -> None:
    how: dict[str, Any] = {"optional": (), "gain": 3.0}
    plain = run(write_tiny(tmp_path / "plain.gguf", "gemma2", **how), IDS)
    other = run(write_tiny(tmp_path / "other.gguf", "gemma2", **how, **changes), IDS)
    assert nmse(other, plain) > 1e-4


def test_gemma2_without_keys_has_the_first_models_numbers(tmp_path: Path) -> None:
    keys = dict.fromkeys(
        (".attn_logit_softcapping", ".final_logit_softcapping", ".attention.sliding_window")
    )
    hp = open_model(write_tiny(tmp_path / "m.gguf", "gemma2", keys=keys)).arch.hp
    assert (hp.attn_softcap, hp.logit_softcap, hp.sliding_window) == (50.0, 30.0, 4096)


def test_gemma2_logits_stay_within_their_cap(tmp_path: Path) -> None:
    logits = run(write_tiny(tmp_path / "m.gguf", "gemma2", gain=40.0), IDS)
    assert 2.9 < np.abs(logits).max() <= 3.0


def test_gemma2_27b_scales_queries_by_the_embeddings_width(tmp_path: Path) -> None:
    def scale(**changes: Any) -> float:
        model = Model.load(write_tiny(tmp_path / "m.gguf", "gemma2", **changes))
        graph = model.graph(PlanKey(1, 0, 1, 1))
        (found,) = {n.params["scale"] for n in graph.nodes if n.op == "attention"}
        return float(found)

    small = {"n_embd": 32, "n_ff": 32}
    assert scale(**small) == 16**-0.5
    assert scale(**small, n_layer=46) == 8**-0.5


# -- numbers and forms of others -------------------------------------------------------------------


def test_gemma3_rotates_by_two_bases(tmp_path: Path) -> None:
    keys = {".rope.scaling.type": "linear", ".rope.scaling.factor": 8.0}
    model = Model.load(write_tiny(tmp_path / "m.gguf", "gemma3", keys=keys))
    ropes = {n.name: n.params for n in model.graph(PlanKey(1, 0, 1, 1)).nodes if n.op == "rope"}
    found = [(ropes[f"blk.{i}.attn.q_rope"][p]) for i in (4, 5, 6)
             for p in ("freq_base", "freq_scale")]  # fmt: skip
    assert found == [100.0, 1.0, 1e4, 0.125, 100.0, 1.0]


@pytest.mark.parametrize(
    ("arch", "rotated"), [("smollm3", [0, 1, 2, 4]), ("cohere2", [0, 1, 2, 4]), ("gpt2", []),
                          ("bloom", []), ("mpt", []), ("phi2", [0, 1])],
)  # fmt: skip
def test_layers_without_rotation(tmp_path: Path, arch: str, rotated: list[int]) -> None:
    model = Model.load(write_tiny(tmp_path / "m.gguf", arch))
    ropes = {n.name for n in model.graph(PlanKey(1, 0, 1, 1)).nodes if n.op == "rope"}
    assert ropes == {f"blk.{i}.attn.{x}_rope" for i in rotated for x in "qk"}


@pytest.mark.parametrize(
    ("arch", "changes"),
    [
        *(("granite", {name: 1.0}) for name in ("embd_scale", "residual_scale", "logit_scale")),
        ("granite", {"attn_scale": 0.0}), ("cohere2", {"logit_scale": 1.0}),
        ("mpt", {"alibi_bias": 0.0}), ("mpt", {"clamp_kqv": 0.0}),
        ("gemma3", {"rope_base_window": 1e4}),
    ],
    ids=str,
)  # fmt: skip
def test_every_number_counts(tmp_path: Path, arch: str, changes: dict[str, float]) -> None:
    plain = run(write_tiny(tmp_path / "plain.gguf", arch, gain=2.0), IDS)
    other = run(write_tiny(tmp_path / "other.gguf", arch, gain=2.0, **changes), IDS)
    assert nmse(other, plain) > 1e-4


def test_only_rows_to_output_pass_the_last_attention(tmp_path: Path) -> None:
    for arch in ("phi2", "gemma2"):
        model = Model.load(write_tiny(tmp_path / "m.gguf", arch))
        shapes = {n.name: n.shape for n in model.graph(PlanKey(0, 9, 1, 2)).nodes}
        assert shapes["blk.0.ffn.down"][0] == shapes["blk.1.attn.k_rope"][0] == 9
        assert shapes["blk.1.attn.q_rope"][0] == shapes["blk.1.ffn.down"][0] == 2
        picks = [n for n in model.graph(PlanKey(0, 9, 1, 2)).nodes if n.op == "get_rows"]
        assert len(picks) == 3  # embeddings; what is normed and the residual stream, once each


def test_falcon_may_have_a_second_norm(tmp_path: Path) -> None:
    one = write_tiny(tmp_path / "one.gguf", "falcon")
    two = write_tiny(tmp_path / "two.gguf", "falcon", optional=("attn_norm_2.weight",))
    assert nmse(run(two, IDS), run(one, IDS)) > 1e-4


# -- weights that a file holds as one --------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "q8_0", "mxfp4"])
def test_fused_weights_are_their_parts(tmp_path: Path, dtype: str) -> None:
    model = architecture("phi3")(tiny_hparams("phi3"))
    parts = tiny_weights(model, optional=("output.weight", "q.bias", "k.bias", "v.bias"))
    whole = dict(parts)
    for i in range(model.hp.n_layer):
        for kind in ("weight", "bias"):
            qkv = [whole.pop(f"blk.{i}.attn_{p}.{kind}") for p in "qkv"]
            whole[f"blk.{i}.attn_qkv.{kind}"] = np.concatenate(qkv)
        gate_up = [whole.pop(f"blk.{i}.ffn_{p}.weight") for p in ("gate", "up")]
        whole[f"blk.{i}.ffn_up.weight"] = np.concatenate(gate_up)
    paths = [write_arrays(tmp_path / f"{n}.gguf", model, arrays, dtype)
             for n, arrays in (("parts", parts), ("whole", whole))]  # fmt: skip
    assert np.array_equal(run(paths[0], IDS), run(paths[1], IDS))
    notes = [open_model(path).notes for path in paths]
    assert all("not used" not in note for note in notes[1])
    assert [len(n) for n in notes] == [0, 0]  # every type is computed with as it is


def write_arrays(path: Path, model: Architecture, arrays: dict[str, Any], dtype: str) -> Path:
    def tensor(a: np.ndarray) -> Any:
        if a.ndim == 1 or dtype == "f32":
            return F32, a.shape, a
        if dtype == "mxfp4":
            kind = gguf.GGMLQuantizationType.MXFP4
            return UnsupportedType("mxfp4", int(kind), 32, 17), a.shape, gguf.quantize(a, kind)
        return dtype_by_name(dtype), a.shape, encode(dtype_by_name(dtype), a)

    write_gguf(path, dict(model.keys()), {n: tensor(a) for n, a in arrays.items()})
    return path


def test_a_fused_weight_of_another_shape_is_named(tmp_path: Path) -> None:
    model = architecture("phi3")(tiny_hparams("phi3"))
    arrays = tiny_weights(model)
    for part in "qkv":
        del arrays[f"blk.0.attn_{part}.weight"]
    arrays["blk.0.attn_qkv.weight"] = np.zeros((96, 64), np.float32)
    path = write_arrays(tmp_path / "m.gguf", model, arrays, "f32")
    with pytest.raises(ModelError, match=r"blk.0.attn_qkv.weight.*\[96, 64\].*\[128, 64\]"):
        open_model(path)
    del arrays["blk.0.attn_qkv.weight"]
    path = write_arrays(tmp_path / "m.gguf", model, arrays, "f32")
    with pytest.raises(ModelError, match=r"attn_q.weight \(or blk.0.attn_qkv.weight\) is missing"):
        open_model(path)


def test_longrope_is_refused(tmp_path: Path) -> None:
    factors = {"rope_factors_long.weight": np.ones(8, np.float32)}
    with pytest.raises(ModelError, match="rope_factors_long.weight"):
        open_model(write_tiny(tmp_path / "m.gguf", "phi3", weights=factors))


# -- hyperparameters by layer ----------------------------------------------------------------------

MIXED = {"n_ff": (96, 32), "n_head_kv": (1, 4), "sliding_window": (8, 0)}


def mixed(path: Path, **changes: Any) -> Path:
    most = {name: max(values) for name, values in MIXED.items()}
    return write_tiny(path, gain=2.0, by_layer=MIXED, **most, **changes)


def test_layers_differ_as_the_file_says(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    source = open_model(path)
    assert isinstance(source.arch, Decoder)
    for name, values in MIXED.items():
        found = tuple(getattr(source.arch.layer_hparams(i), name) for i in range(2))
        assert found == values
    assert source.weights["blk.1.ffn_up.weight"].shape == (32, 64)
    assert source.weights["blk.0.attn_k.weight"].shape == (16, 64)
    expected = run(path, IDS, backends=("numpy",))
    for n in (3, 40):
        assert nmse(run(path, IDS, n_ubatch=n), expected) <= 1e-6


def test_a_period_says_which_layers_have_the_window(tmp_path: Path) -> None:
    keys = {".attention.sliding_window": 8, ".attention.sliding_window_pattern": 3}
    arch = open_model(write_tiny(tmp_path / "m.gguf", n_layer=7, keys=keys)).arch
    windows = [layer.window for i in range(7) if (layer := arch.cache(i))]
    assert windows == [8, 8, 0, 8, 8, 0, 8]


@pytest.mark.parametrize("name", ["attn_sinks.weight", "attn_q_norm.weight", "ffn_up.scale"])
def test_a_weight_that_changes_the_results_is_not_left_out(tmp_path: Path, name: str) -> None:
    def with_extra(layer: int) -> Path:
        weights = {f"blk.{layer}.{name}": np.ones(16, np.float32)}
        return write_tiny(tmp_path / "m.gguf", weights=weights)

    with pytest.raises(ModelError, match=f"tensor blk.1.{name}: llama has no such weight"):
        open_model(with_extra(1))
    (note,) = open_model(with_extra(2)).notes  # the model has two layers: nothing reads a third
    assert f"not used by llama: blk.2.{name}" in note


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("feed_forward_length", [96, 96, 96], "2, one a layer"),
        ("feed_forward_length", [96, 0], r"feed_forward_length\[1\]: 0 is out of range 1"),
        ("attention.head_count_kv", [2, 3], "3 KV heads do not divide 4"),
        ("attention.sliding_window_pattern", [True], "expected 2 of 0 or 1"),
        ("attention.sliding_window_pattern", 0, "0 is out of range 1"),
        ("attention.sliding_window_pattern", "odd", "expected 2 of 0 or 1"),
        ("final_logit_softcapping", 30.0, "30.0 changes the results.*expected 0.0"),
        ("residual_scale", 0.5, "0.5 changes the results.*expected 1.0"),
        ("logit_scale", -1.0, "-1.0 is out of range 0"),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, key: str, value: Any, says: str) -> None:
    path = write_tiny(tmp_path / "m.gguf", keys={f".{key}": value})
    with pytest.raises(ModelError, match=rf"llama\.{key}.*{says}|{says}") as e:
        open_model(path)
    assert f"llama.{key}" in str(e.value)


def test_a_key_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    def with_key(key: str, value: Any) -> Path:
        return write_tiny(tmp_path / "m.gguf", keys={key: value})

    for key, value in ((".attention.temperature_length", 8192), (".some_scale", [0.0, 0.5]),
                       (".expert_count", 4)):  # fmt: skip
        arch = "gemma" if key == ".expert_count" else "llama"
        with pytest.raises(ModelError, match=rf"{arch}\{key}"):
            open_model(write_tiny(tmp_path / "m.gguf", arch, keys={key: value}))
    for key, value in ((".some_scale", 0.0), (".some_flag", False), ("other.some_scale", 2.0),
                       (".vocab_size", 96)):  # fmt: skip
        assert open_model(with_key(key, value)).arch.hp.n_layer == 2


def test_hyperparameters_survive_a_file(tmp_path: Path) -> None:
    for arch in ("llama", "gemma2"):
        hp = tiny_hparams(arch, by_layer={"n_ff": (96, 64)})
        path = write_tiny(tmp_path / "m.gguf", arch, by_layer={"n_ff": (96, 64)})
        found = open_model(path).arch.hp
        assert found.by_layer == hp.by_layer
        for name in ("sliding_window", "attn_softcap", "logit_softcap", "n_ff", "n_head"):
            assert getattr(found, name) == getattr(hp, name)


# -- LongRoPE, OPT, GPT-NeoX -----------------------------------------------------------------------


def test_longrope_takes_the_factors_of_the_context(tmp_path: Path) -> None:
    factors = {
        "rope_factors_long.weight": np.linspace(1, 4, 8, dtype=np.float32),
        "rope_factors_short.weight": np.linspace(1, 2, 8, dtype=np.float32),
    }
    keys = {".rope.scaling.original_context_length": 64, ".rope.scaling.attn_factor": 1.2}
    how: dict[str, Any] = {"gain": 2.0, "n_ctx_train": 256}
    path = write_tiny(tmp_path / "m.gguf", "phi3", keys=keys, weights=factors, **how)
    for n_ctx, name in ((64, "short"), (256, "long")):
        freqs = {"rope_freqs.weight": factors[f"rope_factors_{name}.weight"]}
        keys = {".rope.scaling.attn_factor": 1.2}
        alone = write_tiny(tmp_path / f"{name}.gguf", "phi3", keys=keys, weights=freqs, **how)
        assert np.array_equal(run(path, IDS, n_ctx=n_ctx), run(alone, IDS, n_ctx=n_ctx))
    del factors["rope_factors_long.weight"]
    path = write_tiny(tmp_path / "m.gguf", "phi3", keys=keys, weights=factors)
    with pytest.raises(ModelError, match=r"rope_factors_long.weight is missing"):
        open_model(path)


def test_opts_positions_may_begin_with_two_that_nobody_has(tmp_path: Path) -> None:
    table = np.random.default_rng(1).standard_normal((66, 64)).astype(np.float32)
    paths = [
        write_tiny(tmp_path / f"{n}.gguf", "opt", weights={"position_embd.weight": table[66 - n :]})
        for n in (64, 66, 63)
    ]
    assert np.array_equal(run(paths[0], IDS), run(paths[1], IDS))
    with pytest.raises(ModelError, match="63 rows, expected 64 or 66"):
        open_model(paths[2])


def test_neox_blocks_stand_side_by_side_or_not(tmp_path: Path) -> None:
    logits = []
    for parallel in (True, False):
        keys = {".use_parallel_residual": parallel}
        path = write_tiny(tmp_path / f"{parallel}.gguf", "gptneox", gain=2.0, keys=keys)
        logits.append(run(path, IDS))
        assert nmse(logits[-1], run(path, IDS, backends=("numpy",))) <= 1e-6
    assert nmse(*logits) > 1e-3


def test_minicpms_numbers_follow_from_its_sizes(tmp_path: Path) -> None:
    keys = dict.fromkeys((".embedding_scale", ".residual_scale", ".logit_scale"))
    hp = open_model(write_tiny(tmp_path / "m.gguf", "minicpm", keys=keys)).arch.hp
    assert (hp.embd_scale, hp.residual_scale) == (12.0, 1.4 / 2**0.5)
    assert hp.logit_scale == 64 / 256
