"""`gguflow sparse eval`: figures against plain formulas, the verdict, the picture."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from relu_model import predictors

from gguflow.cli.main import main
from gguflow.engine.evaluate import windows
from gguflow.engine.model import Model
from gguflow.engine.taps import tapped

TEXT = "the quick brown fox jumps over the lazy dog, 12 times; " * 6
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def ask(capfd, tmp_path: Path):
    """ask(model, *flags) -> exit code, the runs by name, standard error."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)

    def ask_(model: Path, *words: str) -> tuple[int, dict[str, dict], str]:
        code = main(
            ["sparse", "eval", "-m", str(model), "-f", str(text), "-c", "48", "-t", "1", *words]
        )
        out, err = capfd.readouterr()
        try:
            return code, {row["run"]: row for row in json.loads(out)}, err
        except ValueError:
            return code, {}, err + out

    return ask_


def text_windows(model: Model) -> list[list[int]]:
    return windows(model.tokenizer.encode(TEXT), 48, model.tokenizer.bos)


@pytest.mark.parametrize("threshold", [None, -0.8, 0.6])
def test_against_the_definitions(write_relu, ask, threshold: float | None) -> None:
    path = write_relu(keys={".sparse_threshold": 0.25})
    flags = [] if threshold is None else ["--thresholds", str(threshold)]
    _, rows, _ = ask(path, "-o", "json", *flags)
    row = rows["file's" if threshold is None else f"{threshold:g}"]
    assert row.get("threshold") == threshold
    used = 0.25 if threshold is None else threshold

    # What is skipped and what would have fired, from the inputs of that run's layers.
    changes = {"sparse": "predict", "sparse_threshold": used}
    model = Model.load(path, n_ctx=48, **changes)
    names = [f"blk.{i}.ffn.{part}" for part in ("norm", "predict") for i in range(2)]
    seen = [c[:-1] for c in text_windows(model)]  # a window's last token predicts nothing
    values = [[v.copy() for v in found] for found in tapped(model, names, seen)]
    for i, layer in enumerate(row["layers"]):
        h = np.concatenate([v[i] for v in values])
        idx = np.concatenate([v[2 + i] for v in values])
        weight = model.source.weights[f"blk.{i}.ffn_gate.weight"]
        gate = h @ weight.read().view(np.float32).reshape(weight.shape).T
        assert np.abs(gate).min() > 1e-6 and np.abs(idx - used).min() > 1e-6
        skipped, fires = idx < used, gate > 0
        assert layer == {
            "neurons": idx.size, "computed": int((~skipped).sum()), "fired": int(fires.sum()),
            "missed": int((skipped & fires).sum()),
        }  # fmt: skip
        assert 0 < layer["missed"] < layer["fired"]

    # Perplexity and divergence, from whole logits.
    p = {}
    for name, m in (("dense", Model.load(path, n_ctx=48, sparse="off")), ("sparse", model)):
        x = np.stack([m.logits(c)[24:47] for c in text_windows(m)]).astype(np.float64)
        e = np.exp(x - x.max(-1, keepdims=True))
        p[name] = (e / e.sum(-1, keepdims=True)).reshape(-1, x.shape[-1])
    targets = np.concatenate([c[25:] for c in text_windows(model)])
    nll = {name: -np.log(q[np.arange(len(targets)), targets]).mean() for name, q in p.items()}
    assert row["n_tokens"] == len(targets)
    assert row["perplexity"] == pytest.approx(math.exp(nll["sparse"]), rel=1e-5)
    assert row["above_dense"] == pytest.approx(math.exp(nll["sparse"] - nll["dense"]) - 1, rel=1e-3)
    kl = (p["dense"] * np.log(p["dense"] / p["sparse"])).sum(-1)
    assert row["mean_kl"] == pytest.approx(kl.mean(), rel=1e-3)
    assert row["mean_kl"] > 1e-3


def test_nothing_skipped_is_dense_and_so_is_exact(write_relu, ask) -> None:
    _, rows, _ = ask(write_relu(), "-o", "json", "--thresholds=-inf,inf")
    assert list(rows) == ["dense", "exact", "file's", "-inf", "inf"]
    for name in ("exact", "-inf"):
        assert rows[name]["above_dense"] == pytest.approx(0, abs=1e-5)
        assert rows[name]["mean_kl"] < 1e-6
    assert all(c["missed"] == 0 and c["computed"] == c["neurons"] for c in rows["-inf"]["layers"])
    assert all(c["computed"] == 0 and c["missed"] == c["fired"] for c in rows["inf"]["layers"])
    assert rows["inf"]["mean_kl"] > rows["file's"]["mean_kl"] > 1e-3


def test_the_exit_code_is_the_defaults(write_relu, ask) -> None:
    path = write_relu(keys={".sparse_threshold": -1e9})
    # Others may be as bad as they like.
    assert ask(path, "--thresholds", "inf")[0] == 0
    bad = write_relu(keys={".sparse_threshold": 1e9})
    code, _, err = ask(bad)
    assert code == 5 and "above dense, more than 1.00%" in err
    assert ask(bad, "--tolerance", "1e9")[0] == 0


def test_thresholds_of_layers(write_relu, ask) -> None:
    path = write_relu(keys={".sparse_threshold": np.array([-1e9, 1e9], np.float32)})
    first, second = ask(path, "-o", "json")[1]["file's"]["layers"]
    assert first["computed"] == first["neurons"] and second["computed"] == 0


def test_a_predictor_of_another_file(write_relu, ask) -> None:
    from gguflow.engine.variants.relu.identity import model_hash
    from gguflow.engine.variants.relu.predictor import write_predictor

    whole, bare = write_relu(), write_relu(predict=False, name="bare.gguf")
    source = Model.load(bare).source
    w = predictors()
    layers = [(w[f"blk.{i}.fc1.weight"], w[f"blk.{i}.fc2.weight"]) for i in range(2)]
    sidecar = bare.parent / "p.gguf"
    write_predictor(sidecar, source.arch.hp, layers, 0.5, model_hash(source))
    found = ask(bare, "-o", "json", "--predictor", str(sidecar))[1]["file's"]
    expected = ask(whole, "-o", "json", "--thresholds", "0.5")[1]["0.5"]
    # F16 predictors against F32 ones: a score near the threshold may fall on its other side.
    for a, b in zip(found["layers"], expected["layers"], strict=True):
        assert a["computed"] == pytest.approx(b["computed"], rel=0.01)
    assert found["perplexity"] == pytest.approx(expected["perplexity"], rel=0.05)


def test_without_predictors_only_the_exact_mode_is_compared(write_relu, ask) -> None:
    path = write_relu(predict=False)
    code, rows, _ = ask(path, "-o", "json")
    assert code == 0 and list(rows) == ["dense", "exact"]
    code, _, err = ask(path, "--curve", str(path.parent / "c.svg"))
    assert code == 3 and "has no predictors" in err


def test_the_curve(write_relu, ask, tmp_path: Path) -> None:
    svg = tmp_path / "c.svg"
    path = write_relu()
    _, rows, err = ask(path, "-o", "json", "--curve", str(svg), "--thresholds=-9")
    assert f"wrote {svg}" in err
    root = ElementTree.parse(svg).getroot()
    assert root.tag == f"{SVG}svg"
    base = rows["dense"]["perplexity"]
    shown = [r for r in rows.values() if "layers" in r and r["perplexity"] / base - 1 <= 0.03]
    assert 1 <= len(shown) < len(rows) - 2  # a random predictor is beyond the picture's top soon
    filled = [c for c in root.iter(f"{SVG}circle") if c.get("fill") != "none"]
    assert len(filled) == 2 * len(shown)
    for line in root.iter(f"{SVG}polyline"):
        points = [tuple(map(float, p.split(","))) for p in (line.get("points") or "").split()]
        assert points == sorted(points)
        assert all(0 <= x <= 720 and 0 <= y <= 420 for x, y in points)
    # The sweep's thresholds skip what they aim at, about.
    sweep = [r for r in rows.values() if r.get("threshold") not in (None, -9.0)]
    skipped = [
        1 - sum(c["computed"] for c in r["layers"]) / sum(c["neurons"] for c in r["layers"])
        for r in sweep
    ]
    assert skipped == pytest.approx(
        [0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.95], abs=0.06
    )


def test_the_tables(write_relu, ask) -> None:
    path = write_relu()
    code, _, out = ask(path)
    assert code in (0, 5)
    lines = [line for line in out.splitlines() if line.startswith("|")]
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    assert [c[0] for c in cells] == [
        "threshold", ":---", "dense", "exact", "file's", "layer", "---:", "0", "1", "all",
    ]  # fmt: skip
    row = ask(path, "-o", "json")[1]["file's"]
    missed, fired = (sum(c[k] for c in row["layers"]) for k in ("missed", "fired"))
    assert cells[4][2] == f"{missed / fired:.2%}"
    assert cells[-1][4] == f"{1 - missed / fired:.2%}"


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [(["--thresholds", "1,x"], 2, "--thresholds"),
     (["--thresholds", "nan"], 2, "cannot be NaN"),
     (["--curve", "c.png"], 2, "must end in .svg"),
     (["--curve", "/nowhere/c.svg"], 2, "--curve /nowhere/c.svg: no directory /nowhere"),
     (["--tolerance", "nan"], 2, "--tolerance: nan: expected a finite number"),
     (["--predictor", "/nowhere/p.gguf"], 3, "/nowhere/p.gguf"),
     (["-m", "/nowhere/m.gguf"], 3, "/nowhere/m.gguf")],
)  # fmt: skip
def test_bad_arguments(write_relu, ask, words: list[str], code: int, expected: str) -> None:
    found, _, err = ask(write_relu(), *words)
    assert found == code and expected in err
