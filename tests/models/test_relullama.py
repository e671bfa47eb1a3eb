"""ReLU models: sparse forms equal the dense one; files of all makes; errors that name things."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from relu_models import IDS, N_EMBD, N_FF, N_LAYER, RANKS, nmse, predictors, run, write, write_part
from tiny_model import write_tiny

from gguflow.engine.backends.numpy import evaluate
from gguflow.engine.gguf import GgufError, GgufFile, write_gguf
from gguflow.engine.graph import F32, Graph, dtype_by_name
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.options import OptionError, Options
from gguflow.engine.plan_key import step_key
from gguflow.engine.planning import Setup
from gguflow.engine.quants import decode, encode
from gguflow.engine.variants.relu.identity import model_hash
from gguflow.engine.variants.relu.predictor import write_predictor
from gguflow.engine.variants.relu.run import SparseRun, sparse_run
from gguflow.engine.variants.relu.variant import ReluVariant
from gguflow.models.base import ModelError
from gguflow.models.blocks import Site
from gguflow.models.relullama import ReluLlama

MINUS_INFINITY = float("-inf")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("relu") / "m.gguf")


@pytest.mark.parametrize("backends", [("cpu", "numpy"), ("numpy",)])
@pytest.mark.parametrize("fuse", [True, False])
def test_forms_that_skip_nothing_of_worth_equal_dense(
    path: Path, backends: tuple[str, ...], fuse: bool
) -> None:
    dense = run(path, sparse="off", backends=("numpy",))
    how = {"backends": backends, "fuse": fuse}
    assert nmse(run(path, sparse="exact", **how), dense) < 1e-6
    assert nmse(run(path, sparse_threshold=MINUS_INFINITY, **how), dense) < 1e-6
    assert nmse(run(path, sparse="off", **how), dense) < 1e-6


def test_dense_is_llama_with_relu(path: Path) -> None:
    with GgufFile.open(path) as f:
        w = {n: f.array(n) for n in f.tensors}
    model = Model.load(path, sparse="off", backends=("numpy",), fuse=False)
    x = np.random.default_rng(0).standard_normal((3, N_EMBD)).astype(np.float32)
    norm = w["blk.1.ffn_norm.weight"]
    h = x / np.sqrt((x**2).mean(-1, keepdims=True) + model.hp.norm_eps) * norm
    gate, up = (h @ w[f"blk.1.ffn_{p}.weight"].T for p in ("gate", "up"))
    expected = (np.maximum(gate, 0) * up) @ w["blk.1.ffn_down_t.weight"] + x
    assert nmse(ffn(model, 1, x, "off"), expected) < 1e-10
    assert nmse(ffn(model, 1, x, "exact"), expected) < 1e-10
    scores = np.maximum(x @ w["blk.1.fc1.weight"].T, 0) @ w["blk.1.fc2.weight"].T
    hidden = np.maximum(gate, 0) * up * (scores >= 2.0)
    expected = hidden @ w["blk.1.ffn_down_t.weight"] + x
    assert nmse(ffn(model, 1, x, "predict", 2.0), expected) < 1e-10


def ffn(model: Model, i: int, x: np.ndarray, mode: Any, threshold: float | None = None) -> Any:
    """The feed-forward part of one layer, by the references."""
    g = Graph()
    sources = model.source.weights
    w = {s.name: g.weight(s.name, s.dtype, s.shape) for s in sources.values()}
    inputs: Any = None
    assert isinstance(model.arch, ReluLlama)
    with g.scope(f"blk.{i}"):
        at = Site(g, w, inputs, model.hp, i)
        g.output(model.arch.feed_forward(at, g.input("x", F32, x.shape)))
    SparseRun(mode, threshold).rewrite(g)
    feeds = {n: sources[n].read() for n in w}
    return evaluate(g, {**feeds, "x": x})[g.outputs[0].name]


def test_the_threshold_decides(path: Path) -> None:
    dense = run(path, sparse="off")
    found = [run(path, sparse_threshold=t) for t in (-40.0, 0.0, 15.0)]
    losses = [nmse(x, dense) for x in found]
    assert losses[0] < losses[1] < losses[2] and losses[1] > 1e-3
    assert np.array_equal(run(path), found[1])  # the file says nothing: 0
    by_layer = run(path, sparse_threshold=(0.0, MINUS_INFINITY))
    assert 0 < nmse(by_layer, dense) < losses[1]


def test_the_files_threshold(path: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "t.gguf", keys={".sparse_threshold": 5.0})
    assert np.array_equal(run(other), run(path, sparse_threshold=5.0))
    each = write(tmp_path / "e.gguf", keys={".sparse_threshold": np.float32([5.0, 1.0])})
    assert np.array_equal(run(each), run(path, sparse_threshold=(5.0, 1.0)))


def test_relu_on_the_up_projection(path: Path, tmp_path: Path) -> None:
    both = write(tmp_path / "m.gguf", keys={".relu_up": True})
    dense = run(both, sparse="off")
    assert nmse(dense, run(path, sparse="off")) > 1e-3
    assert nmse(run(both, sparse="exact"), dense) < 1e-6
    assert nmse(run(both, sparse_threshold=MINUS_INFINITY), dense) < 1e-6


def test_a_prompt_is_its_tokens_one_by_one(path: Path) -> None:
    for mode in ("predict", "exact"):
        model = Model.load(path, n_threads=1, sparse=mode)
        s = model.new_session()
        steps = [s.step([t], "last")[0][0].copy() for t in IDS]
        assert nmse(np.array(steps), model.logits(IDS)) < 1e-9, mode


def test_another_mode_of_a_loaded_model(tmp_path: Path) -> None:
    path = quantized(write(tmp_path / "f32.gguf"), tmp_path / "q.gguf", "q8_0")
    loaded = Model.load(path, n_threads=1, sparse="off")
    for mode in ("predict", "exact", "off"):
        other = loaded.with_options(sparse=mode)
        assert np.array_equal(other.logits(IDS), run(path, sparse=mode)), mode
    assert np.array_equal(loaded.logits(IDS), run(path, sparse="off"))


def test_auto_predicts_only_where_it_can(path: Path, tmp_path: Path) -> None:
    """Before anything is measured, and where nothing is."""
    bare = write(tmp_path / "bare.gguf", with_predictor=False)
    half = {"blk.1.fc1.weight": None, "blk.1.fc2.weight": None}
    partly = write_part(tmp_path / "part.gguf", path, half)
    for file, mode in ((path, "predict"), (bare, "exact"), (partly, "exact")):
        run = sparse_run(ReluVariant().prepare(Setup(open_model(file), Options())))
        assert run is not None and run.mode == mode


# -- files ---------------------------------------------------------------------------------------


def quantized(path: Path, out: Path, dtype: str, down: bool = False) -> Path:
    """A copy with its feed-forward matrices in another type; down: as ffn_down, not transposed."""
    t = dtype_by_name(dtype)
    with GgufFile.open(path) as f:
        tensors: dict[str, Any] = {}
        for n in f.tensors:
            a = f.array(n)
            if down and "ffn_down_t" in n:
                n, a = n.replace("down_t", "down"), np.ascontiguousarray(a.T)
            raw = encode(t, a) if ".ffn_" in n and a.ndim == 2 else a
            tensors[n] = (t if ".ffn_" in n and a.ndim == 2 else F32, a.shape, raw.view(np.uint8))
        write_gguf(out, f.typed_metadata(), tensors)
    return out


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_a_down_matrix_the_usual_way_round(dtype: str, path: Path, tmp_path: Path) -> None:
    usual = quantized(path, tmp_path / "d.gguf", dtype, down=True)
    rows = quantized(path, tmp_path / "t.gguf", dtype)
    dense = run(usual, sparse="off")
    tolerance = 1e-3 if dtype == "q8_0" else 1e-5  # quantized twice
    for mode in ("off", "exact", "predict"):
        assert nmse(run(usual, sparse=mode), run(rows, sparse=mode)) < tolerance, mode
    assert nmse(run(usual, sparse="exact"), dense) < tolerance
    loaded = Model.load(usual, sparse="predict")
    source = loaded.source
    assert source.weights["blk.0.ffn_down_t.weight"].shape == (N_FF, N_EMBD)
    (said,) = loaded.notes
    assert said.startswith("2 tensors are converted while loading: ffn_down, transposed")
    assert ("again quantized, as q8_0" in said) == (dtype == "q8_0")
    assert Model.load(usual, sparse="off").notes == ()
    f32 = decode(dtype_by_name("f32"), open_model(path).weights["blk.0.ffn_down_t.weight"].read(),
                 (N_FF, N_EMBD))  # fmt: skip
    w = source.weights["blk.0.ffn_down_t.weight"]
    assert nmse(decode(w.dtype, w.read(), w.shape), f32) < tolerance


def test_types_without_sparse_kernels_are_converted(path: Path, tmp_path: Path) -> None:
    other = quantized(path, tmp_path / "q.gguf", "q5_0")
    dense = run(other, sparse="off", backends=("numpy",))
    model = Model.load(other, sparse="exact", n_threads=1)
    assert {s.backend for s in model.plan(step_key(1, "last", False)).segments} == {"cpu"}
    assert nmse(model.logits(IDS), dense) < 1e-3
    assert any("q5_0 of the sparse layers (again quantized, as q8_0)" in n
               for n in model.notes)  # fmt: skip


def power_infer(path: Path, source: Path, arch: str, threshold: float) -> Path:
    """A model as PowerInfer's converter writes it: the gguf package's writer, the magic patched."""
    w = gguf.GGUFWriter(path, arch)
    with GgufFile.open(source) as f:
        for key, kind in f.types.items():
            name = key.replace("relullama.", f"{arch}.")
            value = f.metadata[key]
            if kind == "u32":
                w.add_uint32(name, value)
            elif kind == "f32":
                w.add_float32(name, value)
        w.add_float32("powerinfer.sparse_threshold", threshold)
        for n in f.tensors:
            w.add_tensor(n, f.array(n))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    raw = path.read_bytes()
    path.write_bytes(b"PWRI" + raw[4:])
    return path


@pytest.mark.parametrize("arch", ["llama", "bamboo"])
def test_power_infers_models_are_read_as_they_are(arch: str, path: Path, tmp_path: Path) -> None:
    theirs = power_infer(tmp_path / "m.powerinfer.gguf", path, arch, 1.5)
    keys = {".sparse_threshold": 1.5} | ({".relu_up": True} if arch == "bamboo" else {})
    ours = write(tmp_path / "ours.gguf", keys=keys)
    assert Model.load(theirs).arch.name == "relullama"
    for mode in ("predict", "exact", "off"):
        assert np.array_equal(run(theirs, sparse=mode), run(ours, sparse=mode)), mode


def test_power_infers_other_architectures(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="PowerInfer's 'mpt' is not supported; have llama, bamboo"):
        open_model(power_infer(tmp_path / "m.gguf", path, "mpt", 0.0))


def test_quantizing_keeps_what_it_is(path: Path, tmp_path: Path) -> None:
    from gguflow.engine.quantize import plan_changes, quantize_file
    from gguflow.engine.requantize import native_converter

    theirs = power_infer(tmp_path / "m.gguf", path, "bamboo", 1.5)
    out = tmp_path / "q.gguf"
    with GgufFile.open(theirs) as f:
        quantize_file(f, out, "Q8_0", plan_changes(f, "Q8_0"), native_converter(1))
    with GgufFile.open(out) as f:
        assert f.metadata["general.architecture"] == "relullama" and f.magic == "GGUF"
        assert f.tensors["blk.0.ffn_down_t.weight"].dtype.name == "q8_0"
        assert f.tensors["blk.0.fc1.weight"].dtype.name == "q8_0"
        assert f.tensors["blk.0.fc2.weight"].dtype.name == "f16"  # rows of 12
    assert nmse(run(out, sparse="exact"), run(theirs, sparse="exact")) < 1e-2
    run_ = sparse_run(Model.load(out, sparse="predict").setup)
    assert run_ is not None and run_.layer_threshold(1) == 1.5


def test_a_predictor_in_a_file_of_its_own(path: Path, tmp_path: Path) -> None:
    bare = write(tmp_path / "bare.gguf", with_predictor=False)
    w = predictors()
    layers = [(w[f"blk.{i}.fc1.weight"], w[f"blk.{i}.fc2.weight"]) for i in range(N_LAYER)]
    source = open_model(bare)
    side = tmp_path / "p.gguf"
    owner = model_hash(source)
    write_predictor(side, source.arch.hp, layers, [0.5, 1.5], owner, dtype_by_name("f32"))
    expected = run(path, sparse_threshold=(0.5, 1.5))
    assert np.array_equal(run(bare, predictor=str(side)), expected)
    # A whole model serves as well, with its own threshold.
    assert np.array_equal(run(bare, predictor=str(path)), run(path))
    small = tmp_path / "p16.gguf"
    write_predictor(small, source.arch.hp, layers, 0.0, owner)
    assert GgufFile.open(small).tensors["blk.0.fc1.weight"].dtype.name == "f16"
    assert nmse(run(bare, predictor=str(small), sparse_threshold=MINUS_INFINITY),
                run(bare, sparse="off")) < 1e-6  # fmt: skip


# -- errors --------------------------------------------------------------------------------------


def test_no_predictor_to_predict_with(tmp_path: Path) -> None:
    bare = write(tmp_path / "bare.gguf", with_predictor=False)
    with pytest.raises(ModelError, match=r"bare.gguf: tensor blk.0.fc1.weight is missing, so ther"):
        Model.load(bare, sparse="predict")


def broken(fc2: tuple[int, int] = (N_FF, RANKS[0]), **more: Any) -> dict[str, Any]:
    return {"blk.0.fc2.weight": np.zeros(fc2, np.float32), **more}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"blk.1.fc2.weight": None}, "tensor blk.1.fc2.weight is missing; blk.1.fc1.weight, the"),
        ({"blk.1.fc1.weight": None}, "tensor blk.1.fc1.weight is missing; blk.1.fc2.weight, the"),
        (broken((95, 12)), r"blk.0.fc2.weight has shape \[95, 12\], expected \[96, any\]"),
        (broken((96, 13)), r"blk.0.fc2.weight has shape \[96, 13\], expected \[96, 12\] for blk.0"),
        ({"blk.0.fc1.weight": np.zeros((12, 63), np.float32)}, r"expected \[any, 64\]"),
        ({"blk.1.ffn_down_t.weight": None}, r"ffn_down_t.weight \(or blk.1.ffn_down.weight\) is"),
        ({"blk.0.ffn_up.bias": np.zeros(96, np.float32)}, "blk.0.ffn_up.bias: relullama has no"),
    ],
)
def test_tensors_that_do_not_fit(
    change: dict[str, Any], says: str, path: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=says):
        open_model(write_part(tmp_path / "x.gguf", path, change))


@pytest.mark.parametrize(
    ("value", "says"),
    [("high", "found a str, expected a number"), (float("nan"), "found a float, expected a number"),
     (np.float32([1, 2, 3]), "found 3 entries, expected 2, one a layer")],
)  # fmt: skip
def test_a_bad_threshold_in_the_file(value: Any, says: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", keys={".sparse_threshold": value})
    with pytest.raises(GgufError, match=f"x.gguf: key 'relullama.sparse_threshold': {says}"):
        Model.load(path)


def test_a_predictor_of_another_model(path: Path, tmp_path: Path) -> None:
    source = open_model(path)
    hp, w = source.arch.hp, predictors()
    layers = [(w[f"blk.{i}.fc1.weight"], w[f"blk.{i}.fc2.weight"]) for i in range(N_LAYER)]
    side = tmp_path / "p.gguf"
    write_predictor(side, hp, layers, 0.0, "f00d")
    with pytest.raises(
        GgufError, match="predictor.model_hash.*this predictor is for another model"
    ):
        Model.load(path, predictor=str(side))
    with pytest.raises(GgufError, match=r"feed_forward_length.*found 96, expected 80"):
        Model.load(write(tmp_path / "n.gguf", False, n_ff=80), predictor=str(side))
    cut = write_part(tmp_path / "c.gguf", path, {"blk.1.fc2.weight": None})
    with pytest.raises(ModelError, match=r"c.gguf: tensor blk.1.fc2.weight is missing"):
        Model.load(path, predictor=str(cut))
    wrong = write_part(tmp_path / "w.gguf", path, broken((96, 13)))
    with pytest.raises(ModelError, match=r"w.gguf: tensor blk.0.fc2.weight has shape \[96, 13\]"):
        Model.load(path, predictor=str(wrong))
    plain = write_tiny(tmp_path / "llama.gguf")
    with pytest.raises(OptionError, match="`predictor` is for models with ReLU; this one is llama"):
        Model.load(plain, predictor=str(side))
    with pytest.raises(ValueError, match="1 predictors for 2 layers"):
        write_predictor(side, hp, layers[:1], 0.0, "")
    with pytest.raises(ValueError, match=r"layer 1: fc1 \[12, 64\] and fc2 \[96, 20\]"):
        write_predictor(side, hp, [layers[0], (layers[0][0], layers[1][1])], 0.0, "")


def test_options_out_of_range(path: Path) -> None:
    for options, says in (
        ({"sparse": "some"}, "sparse 'some': expected one of auto"),
        ({"sparse_threshold": float("nan")}, "sparse_threshold"),
        ({"sparse_threshold": (1.0,)}, "1 values for 2 layers"),
        ({"vram_budget": -1}, "vram_budget -1"),
        ({"vram_budget": 1 << 30, "n_gpu_layers": 1}, "give one"),
        ({"vram_budget": 1 << 30, "sparse": "off"}, "they need `sparse=predict` or exact"),
    ):
        with pytest.raises(OptionError, match=says):
            Model.load(path, **options)


def test_a_source_is_not_changed_by_running_it(path: Path) -> None:
    source = open_model(path)
    before = replace(source, weights=dict(source.weights))
    Model(source, Options(sparse="exact"))
    assert (source.weights, source.notes) == (before.weights, before.notes)
