"""ReLU layers without a gate, OPT's and ReLU-Falcon's: sparse forms equal the dense one, whole and
divided between a device and the host; PowerInfer's files; ReLU with a threshold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from relu_models import IDS, N_EMBD, N_FF, N_LAYER, nmse, predictors, run
from test_relullama_split import SmallDevice, device, write_random_split
from tiny_model import write_tiny
from waited_for import some_of

from gguflow.engine.gguf import GgufError, GgufFile
from gguflow.engine.load import open_model
from gguflow.engine.load.powerinfer import amended
from gguflow.engine.model import Model
from gguflow.engine.options import OptionError, Options
from gguflow.engine.plan_key import step_key
from gguflow.engine.planning import Setup
from gguflow.engine.quants import decode
from gguflow.engine.variants.relu import device as placing
from gguflow.engine.variants.relu import layer_time
from gguflow.engine.variants.relu.identity import model_hash
from gguflow.engine.variants.relu.layer_time import is_of_layer
from gguflow.engine.variants.relu.place import neuron_bytes
from gguflow.engine.variants.relu.predictor import write_predictor
from gguflow.engine.variants.relu.run import sparse_run
from gguflow.engine.variants.relu.stats import deciding
from gguflow.engine.variants.relu.tools.activity import measure_activity
from gguflow.engine.variants.relu.tools.collect import record
from gguflow.engine.variants.relu.tools.count import count_activations
from gguflow.engine.variants.relu.tools.embed import embed_predictor
from gguflow.engine.variants.relu.tools.evaluate import compare
from gguflow.engine.variants.relu.variant import ReluVariant
from gguflow.models.base import ModelError
from gguflow.models.falcon import Falcon

ARCHS = ("opt", "relufalcon")
MINUS_INFINITY = float("-inf")
__all__ = ["device"]  # the fixture


def write(path: Path, arch: str, with_predictor: bool = True, **more: Any) -> Path:
    """OPT with all its biases, Falcon with those of its norms."""
    biases = (".bias",) if arch == "opt" else ("norm.bias",)
    weights = {**(predictors() if with_predictor else {}), **more.pop("weights", {})}
    optional = ("output.weight", *biases)
    return write_tiny(path, arch, gain=2.0, optional=optional, weights=weights, **more)


@pytest.fixture(scope="module", params=ARCHS)
def arch(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def path(arch: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("relu") / f"{arch}.gguf", arch)


@pytest.mark.parametrize("backends", [("cpu", "numpy"), ("numpy",)])
@pytest.mark.parametrize("fuse", [True, False])
def test_forms_that_skip_nothing_of_worth_equal_dense(
    path: Path, backends: tuple[str, ...], fuse: bool
) -> None:
    dense = run(path, sparse="off", backends=("numpy",), fuse=False)
    how = {"backends": backends, "fuse": fuse}
    assert nmse(run(path, sparse="exact", **how), dense) < 1e-6
    assert nmse(run(path, sparse_threshold=MINUS_INFINITY, **how), dense) < 1e-6
    assert nmse(run(path, sparse="off", **how), dense) < 1e-6
    assert nmse(run(path, **how), run(path, backends=("numpy",), fuse=False)) < 1e-6


def test_relu_falcon_is_falcon_with_relu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = write(tmp_path / "relu.gguf", "relufalcon", with_predictor=False)
    with GgufFile.open(ours) as f:
        down = {n.replace("_t.", "."): np.ascontiguousarray(f.array(n).T) for n in f.tensors
                if "ffn_down_t" in n}  # fmt: skip
        rest = {n: f.array(n) for n in f.tensors if "ffn_down_t" not in n}
    theirs = write_tiny(tmp_path / "gelu.gguf", "falcon", optional=("output.weight", "norm.bias"),
                        weights={**down, **rest})  # fmt: skip
    assert nmse(run(ours, sparse="off"), Model.load(theirs).logits(IDS)) > 1e-3
    monkeypatch.setattr(Falcon, "act", "relu")
    assert nmse(run(ours, sparse="off"), Model.load(theirs).logits(IDS)) < 1e-9


def test_prediction_skips_by_the_input_before_the_norm(path: Path, arch: str) -> None:
    """The scores of the graph are those of the tensor that the layer's norm reads, and what they
    skip is as if its weights were zero."""
    model = Model.load(path, n_threads=1, sparse="predict", backends=("numpy",), fuse=False)
    nodes = {n.name: n for n in model.plan(step_key(4, "all", False)).nodes}
    for i in range(N_LAYER):
        norm = nodes[f"blk.{i}.{'ffn' if arch == 'opt' else 'attn'}.norm"]
        assert nodes[f"blk.{i}.ffn.predict_fc1"].srcs[1] is norm.srcs[0]
    losses = [nmse(run(path, sparse_threshold=t), run(path, sparse="off")) for t in (-40, 0, 15)]
    assert losses[0] < losses[1] < losses[2] and losses[1] > 1e-4


def test_a_prompt_is_its_tokens_one_by_one(path: Path) -> None:
    """The last layer of a step sees only the rows to output, its predictor too."""
    for mode in ("predict", "exact", "off"):
        model = Model.load(path, n_threads=1, sparse=mode)
        s = model.new_session()
        steps = [s.step([t], "last")[0][0].copy() for t in IDS]
        assert nmse(np.array(steps), model.logits(IDS)) < 1e-9, mode
        s.rewind(0)
        assert nmse(s.step(IDS, "last")[0][0], steps[-1]) < 1e-9, mode


def test_layers_are_one_op_where_they_are_predicted(path: Path) -> None:
    def ops(mode: str) -> list[str]:
        plan = Model.load(path, n_threads=1, sparse=mode).plan(step_key(1, "last", False))
        return [n.op or "" for n in plan.nodes if n.name.startswith("blk.0.ffn.")]

    assert "sparse_ffn" in ops("predict") and "axpy_sparse" not in ops("predict")
    # All of up is read anyway: the dense product, and the rows of down that count.
    assert "axpy_sparse" in ops("exact") and "sparse_ffn" not in ops("exact")


def test_what_auto_takes(path: Path, arch: str, tmp_path: Path) -> None:
    """An OPT file is made for dense runs, unless it has predictors."""
    bare = write(tmp_path / "bare.gguf", arch, with_predictor=False)

    def mode(file: Path, **options: Any) -> str:
        found = sparse_run(ReluVariant().prepare(Setup(open_model(file), Options(**options))))
        assert found is not None
        return found.mode

    assert mode(path) == "predict"
    assert mode(bare) == ("off" if arch == "opt" else "exact")
    assert mode(bare, vram_budget=1 << 30) == mode(bare, sparse="exact") == "exact"
    if arch == "opt":
        loaded = Model.load(bare, n_threads=1)
        assert loaded.notes == () and nmse(loaded.logits(IDS), run(bare, sparse="exact")) < 1e-6


@pytest.mark.parametrize("dtype", ["f16", "q8_0", "q4_0"])
def test_quantized(arch: str, dtype: str, tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", arch, dtype=dtype)
    dense = run(file, sparse="off")
    tolerance = 1e-5 if dtype == "f16" else 2e-2  # OPT's down matrix is quantized again
    assert nmse(run(file, sparse="exact"), dense) < tolerance
    assert nmse(run(file, sparse_threshold=MINUS_INFINITY), dense) < tolerance


# -- files ---------------------------------------------------------------------------------------


def power_infer(path: Path, source: Path, arch: str, threshold: float) -> Path:
    """As PowerInfer's converter writes it: tensors of the down product all called ffn_down_t. OPT's
    counts its positions with the two unused ones, and says no epsilon."""
    w = gguf.GGUFWriter(path, arch)
    with GgufFile.open(source) as f:
        for key, kind in f.types.items():
            if arch == "opt" and key.endswith("layer_norm_epsilon"):
                continue
            extra = 2 if arch == "opt" and key.endswith("context_length") else 0
            name = key.replace("relufalcon.", f"{arch}.")
            if kind == "u32":
                w.add_uint32(name, f.metadata[key] + extra)
            elif kind == "f32":
                w.add_float32(name, f.metadata[key])
        w.add_float32("powerinfer.sparse_threshold", threshold)
        for n in f.tensors:
            a = f.array(n)
            if n == "position_embd.weight":
                a = np.concatenate([np.full((2, N_EMBD), 100, np.float32), a])
            if ".ffn_down." in n:
                n, a = n.replace("ffn_down", "ffn_down_t"), np.ascontiguousarray(a.T)
            w.add_tensor(n, a)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    path.write_bytes(b"PWRI" + path.read_bytes()[4:])
    return path


def test_power_infers_models_are_read_as_they_are(arch: str, tmp_path: Path) -> None:
    keys = {".sparse_threshold": 1.5}
    ours = write(tmp_path / "ours.gguf", arch, keys=keys)
    theirs = power_infer(tmp_path / "m.powerinfer.gguf", ours, arch.removeprefix("relu"), 1.5)
    assert Model.load(theirs, sparse="off").arch.name == arch
    for mode in ("predict", "exact", "off"):
        assert nmse(run(theirs, sparse=mode), run(ours, sparse=mode)) < 1e-10, mode


@pytest.mark.parametrize("key", ["general.architecture", "opt.context_length"])
def test_keys_of_other_types_are_refused(key: str, tmp_path: Path) -> None:
    file = power_infer(tmp_path / "m.gguf", write(tmp_path / "o.gguf", "opt"), "opt", 0.0)
    with pytest.raises(ModelError, match=re.escape(key)):
        open_model(file, {key: np.float32([1, 2])})
    amended({key: np.float32([1, 2])})
    amended({"general.architecture": "opt", key: ["opt", "opt"]})


def test_quantizing_keeps_what_it_is(arch: str, tmp_path: Path) -> None:
    from gguflow.engine.quantize import plan_changes, quantize_file
    from gguflow.engine.requantize import native_converter

    theirs = power_infer(tmp_path / "m.gguf", write(tmp_path / "o.gguf", arch),
                         arch.removeprefix("relu"), 1.5)  # fmt: skip
    out = tmp_path / "q.gguf"
    with GgufFile.open(theirs) as f:
        quantize_file(f, out, "Q8_0", plan_changes(f, "Q8_0"), native_converter(1))
    with GgufFile.open(out) as f:
        assert (f.magic, f.metadata["general.architecture"]) == ("GGUF", arch)
        assert f.tensors["blk.0.ffn_down_t.weight"].dtype.name == "q8_0"
        assert f.metadata[f"{arch}.context_length"] == 64
    assert nmse(run(out, sparse="exact"), run(theirs, sparse="exact")) < 1e-2
    found = sparse_run(Model.load(out, sparse="predict").setup)
    assert found is not None and found.layer_threshold(1) == 1.5


def test_a_predictor_in_a_file_of_its_own(path: Path, arch: str, tmp_path: Path) -> None:
    bare = write(tmp_path / "bare.gguf", arch, with_predictor=False)
    w = predictors()
    layers = [(w[f"blk.{i}.fc1.weight"], w[f"blk.{i}.fc2.weight"]) for i in range(N_LAYER)]
    source, side = open_model(bare), tmp_path / "p.gguf"
    f32 = source.weights["token_embd.weight"].dtype
    write_predictor(side, source.arch.hp, layers, [0.5, 1.5], model_hash(source), f32, arch)
    expected = run(path, sparse_threshold=(0.5, 1.5))
    assert np.array_equal(run(bare, predictor=str(side)), expected)
    embed_predictor(bare, tmp_path / "with.gguf", layers, [0.5, 1.5], f32)
    assert np.array_equal(run(tmp_path / "with.gguf"), expected)
    other = write(tmp_path / "n.gguf", arch, False, n_ff=80)
    with pytest.raises(GgufError, match="feed_forward_length"):
        Model.load(other, predictor=str(side))


# -- tools ---------------------------------------------------------------------------------------


def test_tools_count_what_fires(path: Path, arch: str) -> None:
    model = Model.load(path, n_threads=1, sparse="exact")
    assert deciding(model.arch) == ("up",)
    stats = count_activations(model, [IDS])
    hidden = [share for _, share in record(model, [IDS])]
    for counts, share in zip(stats.counts, hidden, strict=True):
        assert np.array_equal(counts, (share > 0).sum(0)) and 0 < counts.mean() < len(IDS)
    rows = measure_activity(Model.load(path, n_threads=1, sparse="predict"), IDS)
    assert [r.active for r in rows] != [r.computed for r in rows]
    exact = measure_activity(model, IDS)
    np.testing.assert_allclose([r.active for r in exact], stats.active_fraction)
    dense, exactly, own = compare(open_model(path), Options(n_ctx=8, n_threads=1), [IDS])
    assert abs(exactly.score.perplexity.value / dense.score.perplexity.value - 1) < 1e-3
    assert len(own.counts) == N_LAYER and all(0 < c.fired < c.all for c in own.counts)


def test_the_inputs_of_predictors_are_recorded(path: Path, arch: str) -> None:
    model = Model.load(path, n_threads=1, sparse="off")
    with GgufFile.open(path) as f:
        w = {n: f.array(n) for n in f.tensors}
    kind = "ffn" if arch == "opt" else "attn"
    for i, (x, share) in enumerate(record(model, [IDS])):
        centred = x - x.mean(-1, keepdims=True)
        h = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + model.hp.norm_eps)
        h = h * w[f"blk.{i}.{kind}_norm.weight"] + w[f"blk.{i}.{kind}_norm.bias"]
        up = h @ w[f"blk.{i}.ffn_up.weight"].T + w.get(f"blk.{i}.ffn_up.bias", 0)
        assert np.array_equal(share > 0, up > 0)


@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
def test_made_up_layers_fire_as_they_are_said_to(arch: str, dtype: str, tmp_path: Path) -> None:
    """Also behind OPT's norm, which takes the mean off: with neurons that are in every set."""
    model = Model.load(write(tmp_path / "m.gguf", arch, dtype=dtype), sparse="predict")
    mine = {n: w for n, w in model.source.weights.items() if is_of_layer(n)}
    for share in (0.25, 0.95):
        inputs, made = layer_time._made_up(mine, [0], N_EMBD, (share,) * 2, (share,) * 2)
        up, h = made["blk.0.ffn_up.weight"], inputs
        if arch == "opt":
            centred = h - h.mean(-1, keepdims=True)
            shift = made["blk.0.ffn_norm.bias"].read().view(np.float32)
            h = centred / centred.std(-1, keepdims=True) + shift
            assert not made["blk.0.ffn_up.bias"].read().any()
        fired = h @ decode(up.dtype, up.read(), up.shape).T > 0
        assert (fired.sum(1) == round(share * N_FF)).all() and len(inputs) > 1


def test_auto_measures_them(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGUFLOW_CACHE_DIR", str(tmp_path))
    model = Model.load(path, n_threads=1)
    run_, note = sparse_run(model.setup), model.notes[-1]
    assert run_ is not None and note.startswith(f"sparse: {run_.mode} (layer ")
    assert 20 < float(note.split(" at ")[1].split(" %")[0]) < 80  # random rows: about half
    assert np.array_equal(model.logits(IDS), run(path, sparse=run_.mode))


def test_a_neuron_is_two_rows(path: Path) -> None:
    (neuron, _) = neuron_bytes(open_model(path) if "falcon" in path.name else
                               Model.load(path, sparse="exact").source)  # fmt: skip
    assert (neuron.gate, neuron.up, neuron.down) == (0, 4 * N_EMBD, 4 * N_EMBD)
    assert neuron.read(np.float64([0.5]), exact=True) == 4 * N_EMBD * 1.5
    assert neuron.on_device(3, N_FF) < neuron.on_device(N_FF, N_FF)


# -- over a device and the host ------------------------------------------------------------------


SPLITS = (0, 31), (1, N_FF), (95, 64)


@pytest.mark.parametrize(
    ("n_gpu", "fuse", "mode"),
    some_of({(SPLITS[0], True, "predict"), (SPLITS[0], False, "exact"),
             (SPLITS[1], True, "exact"), (SPLITS[1], False, "predict"),
             (SPLITS[2], True, "predict"), (SPLITS[2], False, "exact")},
            SPLITS, (True, False), ("predict", "exact")),
)  # fmt: skip
def test_any_split_is_the_whole(
    path: Path, tmp_path: Path, device: type[SmallDevice], n_gpu: tuple[int, ...], fuse: bool,
    mode: Any,
) -> None:  # fmt: skip
    file = tmp_path / "s.gpuidx"
    write_random_split(file, n_gpu, model_hash(open_model(path)), 3)
    whole = run(path, sparse=mode, fuse=fuse)
    model = Model.load(path, n_threads=1, sparse=mode, fuse=fuse, split=str(file))
    assert nmse(model.logits(IDS), whole) < 1e-6
    s = model.new_session()
    steps = np.array([s.step([t], "last")[0][0].copy() for t in IDS])
    assert nmse(steps, whole) < 1e-6


def test_where_everything_is(
    path: Path, arch: str, tmp_path: Path, device: type[SmallDevice]
) -> None:
    file = tmp_path / "s.gpuidx"
    write_random_split(file, (40, N_FF), model_hash(open_model(path)))
    model = Model.load(path, n_threads=1, split=str(file), sparse="predict")
    plan = model.plan(step_key(1, "last", True))
    where = {n: plan.placement.of[t] for n, t in plan.graph.leaves.items()}
    bias = {"blk.0.ffn_up.bias"} if arch == "opt" else set()
    on_host = {n for n, b in where.items() if b == "cpu"}
    assert on_host >= bias | {"blk.0.gpu_idx", "blk.0.ffn_up.weight", "blk.0.ffn_down_t.weight"}
    assert not any("blk.1" in n for n in on_host)
    nodes = {n.name: plan.placement.of[n] for n in plan.nodes}
    assert nodes["blk.0.ffn.cold"] == "cpu" and nodes["blk.0.ffn.hot"] == "cuda:0"
    assert nodes["blk.0.ffn.merge"] == nodes["blk.1.ffn.hot"] == "cuda:0"


def test_a_budget_is_kept_and_used(
    path: Path, device: type[SmallDevice], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GGUFLOW_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(placing, "GROWTH_BYTES", 0)
    kept = []
    for kib in (250, 280, 600):
        model = Model.load(path, n_threads=1, n_ubatch=8, n_ctx=64, vram_budget=kib << 10)
        plan = model.plan(step_key(model.options.n_ubatch, "last", True))
        assert plan.bytes_by_space()["cuda:0"].total <= kib << 10
        kept.append(sum(sparse_run(model.setup).n_gpu))  # type: ignore[union-attr]
        assert nmse(model.logits(IDS), run(path)) < 1e-6
    assert kept == sorted(kept) and kept[0] < kept[-1] == N_LAYER * N_FF


# -- ReLU with a threshold -----------------------------------------------------------------------

CUT = (0.5, 0.25)


@pytest.mark.parametrize("family", ["relullama", "bamboo", *ARCHS])
def test_a_threshold_of_relu_is_honoured(family: str, tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.gguf", family)
    cut = write(tmp_path / "cut.gguf", family, keys={".relu_threshold": np.float32(CUT)})
    dense = run(cut, sparse="off", backends=("numpy",), fuse=False)
    assert nmse(dense, run(plain, sparse="off")) > 1e-4
    for how in ({}, {"fuse": False}, {"backends": ("numpy",)}):
        assert nmse(run(cut, sparse="off", **how), dense) < 1e-6
        assert nmse(run(cut, sparse="exact", **how), dense) < 1e-6
        assert nmse(run(cut, sparse_threshold=MINUS_INFINITY, **how), dense) < 1e-6
    one = write(tmp_path / "one.gguf", family, keys={".relu_threshold": 0.5})
    both = write(tmp_path / "both.gguf", family, keys={".relu_threshold": np.float32([0.5, 0.5])})
    assert np.array_equal(run(one), run(both))
    assert dict(open_model(cut).arch.keys())[f"{family}.relu_threshold"].tolist() == list(CUT)


@pytest.mark.parametrize("family", ["relullama", "opt"])
def test_what_fires_is_above_the_threshold(family: str, tmp_path: Path) -> None:
    cut = write(tmp_path / "cut.gguf", family, keys={".relu_threshold": np.float32(CUT)})
    model = Model.load(cut, n_threads=1, sparse="exact")
    stats = count_activations(model, [IDS])
    for counts, (_, share) in zip(stats.counts, record(model, [IDS]), strict=True):
        assert np.array_equal(counts, (share > 0).sum(0))
    rows = measure_activity(model, IDS)
    np.testing.assert_allclose([r.active for r in rows], stats.active_fraction)


def test_a_threshold_over_a_device_and_the_host(tmp_path: Path, device: type[SmallDevice]) -> None:
    for family in ("relullama", "opt"):
        cut = write(tmp_path / f"{family}.gguf", family, keys={".relu_threshold": 0.3})
        file = tmp_path / f"{family}.gpuidx"
        write_random_split(file, (31, 64), model_hash(open_model(cut)))
        for mode in ("predict", "exact"):
            model = Model.load(cut, n_threads=1, sparse=mode, split=str(file))
            assert nmse(model.logits(IDS), run(cut, sparse=mode)) < 1e-6


@pytest.mark.parametrize("value", [-0.5, "high", float("nan"), float("inf"), np.float32([1, 2, 3])])
def test_a_bad_threshold_of_relu(value: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "x.gguf", "relullama", keys={".relu_threshold": value})
    with pytest.raises(ModelError, match="relullama.relu_threshold: expected .*"):
        open_model(file)


def test_others_have_none(tmp_path: Path) -> None:
    file = write_tiny(tmp_path / "x.gguf", "llama", keys={".relu_threshold": 0.5})
    with pytest.raises(ModelError, match="llama.relu_threshold: 0.5 may change the results"):
        open_model(file)


def test_a_dense_bamboo_file(tmp_path: Path) -> None:
    """As llama.cpp's converter would write it: down as usual, no predictors."""
    ours = write_tiny(tmp_path / "ours.gguf", "relullama", keys={".relu_up": True})
    with GgufFile.open(ours) as f:
        w = {n.replace("_t.", "."): np.ascontiguousarray(f.array(n).T) if "down_t" in n
             else f.array(n) for n in f.tensors}  # fmt: skip
    file = tmp_path / "bamboo.gguf"
    with GgufFile.open(ours) as f:
        metadata = {k.replace("relullama", "bamboo"): v for k, v in f.typed_metadata().items()
                    if not k.endswith("relu_up")}  # fmt: skip
    from gguflow.engine.gguf import Typed, write_gguf
    from gguflow.engine.graph import F32

    metadata["general.architecture"] = Typed("str", "bamboo")
    write_gguf(file, metadata, {n: (F32, a.shape, a) for n, a in w.items()})
    model = Model.load(file, n_threads=1, sparse="off")
    assert model.arch.name == "bamboo" and model.notes == ()
    dense = run(ours, sparse="off")
    assert nmse(model.logits(IDS), dense) < 1e-9
    assert nmse(run(file, sparse="exact"), dense) < 1e-9


def test_options_of_predictors_need_them(arch: str, tmp_path: Path) -> None:
    bare = write(tmp_path / "bare.gguf", arch, with_predictor=False)
    with pytest.raises(ModelError, match="fc1.weight is missing"):
        Model.load(bare, sparse="predict")
    with pytest.raises(OptionError, match="they need `sparse=predict` or exact"):
        Model.load(bare, sparse="off", vram_budget=1 << 30)
