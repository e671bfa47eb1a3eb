"""ReLU models at the command line: what inspect says, and one line for what does not go."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import one_line_error
from tiny_model import write_tiny

from gguflow.engine.variants.relu.split import NeuronSplit, write_split

N_FF, N_EMBD = 96, 64


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "bare.gguf", "relullama")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    weights = {}
    for i, r in enumerate((12, 20)):
        weights[f"blk.{i}.fc1.weight"] = rng.standard_normal((r, N_EMBD)).astype(np.float32)
        weights[f"blk.{i}.fc2.weight"] = rng.standard_normal((N_FF, r)).astype(np.float32)
    return write_tiny(
        tmp_path / "m.gguf", "relullama", weights=weights, keys={".sparse_threshold": 0.25}
    )


def test_inspect_shows_the_predictor(call, model: Path, bare: Path) -> None:
    code, out, _ = call("inspect", str(model), "--metadata")
    assert code == 0
    assert "sparse: predictors of rank 12 to 20 in 2 layers (f32, 20.00 KiB), threshold 0.25" in out
    facts = json.loads(call("inspect", str(model), "--metadata", "--json")[1])["sparse"]
    assert facts["predictor_rank"] == [12, 20] and facts["threshold"] == 0.25
    assert facts["kind"] == "model" and facts["ffn_down_t"] == 2
    assert "sparse: no predictors" in call("inspect", str(bare), "--tensors")[1]


def test_inspect_shows_a_split(call, tmp_path: Path, tiny_model: str) -> None:
    path = tmp_path / "s.gpuidx"
    write_split(path, NeuronSplit(8, (np.arange(3), np.arange(0))), "f00d", 3 << 30)
    out = call("inspect", str(path))[1]
    assert "3 of 16 neurons (18.8%)" in out and "3.00 GiB" in out and "f00d" in out
    facts = json.loads(call("inspect", str(path), "--json")[1])["sparse"]
    assert facts["n_gpu"] == [3, 0] and facts["vram_bytes"] == 3 << 30
    assert "sparse" not in json.loads(call("inspect", tiny_model, "--json")[1])


def test_bench_measures_forms_only_for_auto(call, model: Path, monkeypatch) -> None:
    monkeypatch.setattr(
        "gguflow.engine.variants.relu.variant.choose_form", lambda *a: pytest.fail("nobody asked")
    )
    words = ("-m", str(model), "--sparse", "off", "-p", "4", "-n", "0", "-r", "1")
    assert call("bench", *words)[0] == 0


def test_inspect_shows_the_sparse_plan(call, model: Path) -> None:
    by_mode = {
        mode: call("inspect", str(model), "--plan", "--sparse", mode)[1]
        for mode in ("predict", "exact", "off")
    }
    assert "blk.1.ffn.predict_fc1" in by_mode["predict"] and "sparse_ffn" in by_mode["predict"]
    assert "predict" not in by_mode["exact"] and "sparse_ffn" in by_mode["exact"]
    assert "sparse_ffn" not in by_mode["off"]


def test_the_threshold_is_taken(call, model: Path) -> None:
    words = ("generate", "-m", str(model), "-p", "!!", "-n", "8", "--temp", "0")
    dense = call(*words, "--sparse", "off")[1]
    assert call(*words, "--sparse-threshold", "-inf")[1] == dense
    assert call(*words, "--sparse-threshold", "1e9")[1] != dense


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--sparse", "predict"], 3, "bare.gguf: tensor blk.0.fc1.weight is missing"),
        (["--sparse-threshold", "0.5"], 3, "bare.gguf: --sparse-threshold is for a predictor's"),
        (["--predictor", "none.gguf"], 3, "none.gguf"),
        (["--sparse", "some"], 2, "invalid choice: 'some'"),
        (["--sparse-threshold", "much"], 2, "much: expected a number, inf or -inf"),
        (["--sparse-threshold", "nan"], 2, "nan: expected a number"),
        (["--vram-budget", "0"], 2, "0: expected GiB, more than 0"),
        (["--vram-budget", "1", "-ngl", "1"], 2, "give one"),
        (["--vram-budget", "1", "--sparse", "off"], 2, "they need --sparse predict or exact"),
        *(
            (["--sparse", mode, flag, value], 2, f"--sparse {mode} uses no predictor, so {flag} ")
            for mode in ("exact", "off")
            for flag, value in (("--sparse-threshold", "0"), ("--predictor", "p.gguf"))
        ),
    ],
)
def test_what_does_not_go(call, bare: Path, words: list[str], code: int, says: str) -> None:
    found, out, err = call("generate", "-m", str(bare), "-p", "!!", "-n", "1", *words)
    assert (found, out) == (code, "") and says in one_line_error(err)


def test_a_model_that_is_not_sparse(call, tiny_model: str) -> None:
    for words in (["--sparse", "exact"], ["--sparse-threshold", "0"], ["--vram-budget", "1"]):
        code, _, err = call("generate", "-m", tiny_model, "-p", "!!", "-n", "1", *words)
        assert code == 2 and "is for models with ReLU; this one is llama" in one_line_error(err)
