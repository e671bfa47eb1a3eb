"""Training predictors: what is recorded, what is learned, what is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguflow.cli.main import main
from gguflow.engine.evaluate import windows
from gguflow.engine.gguf import GgufError, GgufFile
from gguflow.engine.model import Model
from gguflow.engine.variants.relu.predictor import file_threshold
from gguflow.engine.variants.relu.tools import collect
from gguflow.engine.variants.relu.tools.collect import contributions, down_norms, record
from gguflow.engine.variants.relu.tools.embed import embed_predictor

TEXT = "the quick brown fox jumps over the lazy dog, 12 times; " * 30


def chunks_of(model: Model) -> list[list[int]]:
    return windows(model.tokenizer.encode(TEXT), 32, model.tokenizer.bos)[:5]


@pytest.mark.parametrize("transposed", [True, False])
def test_what_is_recorded(write_relu, monkeypatch, transposed: bool) -> None:
    """Inputs and neurons fit the layer's own matrices, whatever the groups of layers."""
    path = write_relu(n_layer=3, predict=False)
    model = Model.load(path, sparse="off", n_ubatch=7)
    w = {n: s.read().view(np.float32).reshape(s.shape) for n, s in model.source.weights.items()}
    chunks = chunks_of(model)
    layers = list(record(model, chunks))
    assert len(layers) == 3
    for i, (x, share) in enumerate(layers):
        assert x.shape == (160, 64) and share.shape == (160, 96)
        h = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[f"blk.{i}.ffn_norm.weight"]
        gate, up = (h @ w[f"blk.{i}.ffn_{part}.weight"].T for part in ("gate", "up"))
        cost = np.maximum(gate, 0) * np.abs(up)
        cost *= np.linalg.norm(w[f"blk.{i}.ffn_down_t.weight"], axis=1)
        cost /= cost.sum(-1, keepdims=True) / (cost > 0).sum(-1, keepdims=True)
        np.testing.assert_allclose(share, cost, rtol=5e-3, atol=2e-4)
        assert ((share > 0) == (gate > 0)).mean() > 0.9999
    monkeypatch.setattr(collect, "GROUP_BYTES", 1)
    for (x, share), (x1, share1) in zip(layers, record(model, chunks), strict=True):
        np.testing.assert_array_equal(x, x1)
        np.testing.assert_array_equal(share, share1)


def test_contributions_keep_what_fired() -> None:
    hidden = np.array([[0.0, 1e-12, -3.0, 3.0], [0.0, 0.0, 0.0, 0.0]], np.float32)
    share = contributions(hidden, np.array([1.0, 1.0, 2.0, 0.0], np.float32))
    assert (share > 0).tolist() == [[False, True, True, True], [False] * 4]
    assert share[0, 2] == pytest.approx(3.0, rel=1e-3)  # all of the sum, of three that fire


def test_norms_of_either_form_of_the_down_matrix(write_relu) -> None:
    source = Model.load(write_relu()).source
    name = "blk.0.ffn_down_t.weight"
    w = source.weights[name].read().view(np.float32).reshape(96, 64)
    np.testing.assert_allclose(down_norms(source, 0), np.linalg.norm(w, axis=1), rtol=1e-6)


def planted(n: int, seed: int):
    """Inputs of unequal size, and neurons of which 15 % fire, decided by 6 directions of 32."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(9)
    low, high = torch.randn(6, 32, generator=fixed), torch.randn(40, 6, generator=fixed)
    x = torch.randn(n, 32, generator=rng)
    gate = x @ low.T @ high.T
    gate = gate / gate.std(0) - 1.04 * (x @ low.T).norm(dim=-1, keepdim=True) / 14.5
    x = x * torch.exp(torch.randn(n, 1, generator=rng))
    return x, torch.relu(gate).half()


@pytest.mark.parametrize("recall", [0.8, 0.97])
def test_a_predictor_learns_what_can_be_learned(recall: float) -> None:
    pytest.importorskip("torch")
    from gguflow.engine.variants.relu.tools.train import Settings, measure, train_layer

    x, share = planted(6000, 1)
    seen: list[float] = []
    settings = Settings(rank=24, recall=recall, steps=500, batch=256, rate=1e-2)
    p = train_layer(x, share, settings, lambda step, loss, found: seen.append(loss))
    assert p.fc1.shape == (24, 32) and p.fc2.shape == (40, 24)
    assert seen[-1] < seen[0]
    new = measure(*planted(4000, 2), p.fc1, p.fc2, p.threshold)
    assert new.active < 0.3
    assert new.recall == pytest.approx(recall, abs=0.03)
    assert new.reach > new.recall  # what it misses matters least
    assert new.precision > 2 * new.active
    assert new.predicted < 0.6
    # Steered so: the threshold is 0, but for what steering leaves.
    assert abs(p.threshold) < 0.5 * float(measure_spread(p))
    again = train_layer(x, share, settings)
    assert (again.fc1 == p.fc1).all() and again.threshold == p.threshold


def measure_spread(p):
    from gguflow.engine.variants.relu.tools.train import predict

    return predict(planted(500, 3)[0], p.fc1, p.fc2).std()


def test_quality_by_hand() -> None:
    torch = pytest.importorskip("torch")
    from gguflow.engine.variants.relu.tools.train import measure

    x = torch.tensor([[1.0, -1.0], [2.0, 1.0]])
    fc1, fc2 = torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    # scores: 1 0 1 and 2 1 3; at threshold 1 computed: 1 0 1, 1 1 1
    share = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 3.0]]).half()
    q = measure(x, share, fc1, fc2, 1.0, rows=1)
    assert (q.active, q.predicted) == (3 / 6, 5 / 6)
    assert q.recall == pytest.approx(2 / 3) and q.precision == pytest.approx(2 / 5)
    assert q.reach == pytest.approx(3.5 / 4)


def test_too_few_tokens() -> None:
    torch = pytest.importorskip("torch")
    from gguflow.engine.variants.relu.tools.train import Settings, train_layer

    with pytest.raises(ValueError, match="5 tokens are too few"):
        train_layer(torch.ones(5, 4), torch.ones(5, 8).half(), Settings())


def test_the_command(write_relu, tmp_path: Path, capfd) -> None:
    """Both files it writes run, and predict far better than chance on the text they learned."""
    pytest.importorskip("torch")
    path = write_relu(predict=False)
    (tmp_path / "text.txt").write_text(TEXT)
    side, whole = tmp_path / "side.gguf", tmp_path / "whole.gguf"
    words = ["-m", str(path), "-f", str(tmp_path / "text.txt"), "-c", "32", "-t", "1"]
    settings = ["-r", "32", "--recall", "0.9", "--steps", "150", "--batch", "256"]
    out = ["-o", str(side), "--embed", str(whole), "--type", "q8_0", "--device", "cpu"]
    assert main(["sparse", "train", *words, *settings, *out]) == 0
    table, err = capfd.readouterr()
    assert table.splitlines()[-1].startswith("| mean") and f"wrote {whole}" in err

    for where, more in ((path, {"predictor": str(side)}), (whole, {})):
        model = Model.load(where, sparse="predict", **more)
        assert len(file_threshold(model.source)) == 2  # one a layer
    files = GgufFile.open(path), GgufFile.open(whole)
    for name in files[0].tensors:
        assert files[0].data(name).tobytes() == files[1].data(name).tobytes()
    assert files[1].tensors["blk.0.fc2.weight"].dtype.name == "q8_0"
    assert main(["sparse", "eval", *words, "-m", str(whole), "-o", "json", "--tolerance", "9"]) == 0
    import json

    layers = json.loads(capfd.readouterr()[0])[-1]["layers"]
    for c in layers:
        recall = 1 - c["missed"] / c["fired"]
        assert recall > 0.8
        # Chance would have to compute as large a share as it finds.
        assert c["computed"] / c["neurons"] < recall - 0.1


def test_predictors_in_a_copy_replace_those_there(write_relu, tmp_path: Path) -> None:
    path, out = write_relu(keys={".sparse_threshold": 0.5}), tmp_path / "out.gguf"
    rng = np.random.default_rng(3)
    layers = [
        (rng.standard_normal((r, 64)).astype("f4"), rng.standard_normal((96, r)).astype("f4"))
        for r in (5, 32)
    ]
    embed_predictor(path, out, layers, -0.25)
    f = GgufFile.open(out)
    assert f.tensors["blk.0.fc1.weight"].shape == (5, 64)
    np.testing.assert_array_equal(f.array("blk.1.fc2.weight"), layers[1][1].astype(np.float16))
    assert file_threshold(Model.load(out).source) == -0.25


def test_a_copy_of_powerinfers_file_is_refused(write_relu, tmp_path: Path) -> None:
    path = write_relu()
    data = path.read_bytes()
    path.write_bytes(b"PWRI" + data[4:])
    with pytest.raises(GgufError, match="a GGUF file of bamboo, opt, "):
        embed_predictor(path, tmp_path / "out.gguf", [], 0.0)
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [(["-o", "OUT", "--recall", "1"], 2, "--recall"),
     (["-o", "OUT", "--recall", "x"], 2, "between 0 and 1"),
     (["-o", "OUT", "--type", "q9"], 2, "--type q9"),
     (["-o", "OUT", "--device", "tpu9"], 2, "--device tpu9"),
     (["-o", "OUT", "-m", "SILU"], 3, "has no ReLU"),
     (["--embed", "/nowhere/m.gguf"], 2, "--embed /nowhere/m.gguf: no directory /nowhere"),
     (["-o", "OUT", "-f", "/nowhere/t.txt"], 2, "/nowhere/t.txt"),
     ([], 2, "-o FILE or --embed FILE"),
     (["--random", "tiny", "--embed", "OUT"], 2, "--random")],
)  # fmt: skip
def test_bad_arguments(
    write_relu, tmp_path: Path, capfd, words: list[str], code: int, expected: str
) -> None:
    pytest.importorskip("torch")
    from tiny_model import write_tiny

    silu = write_tiny(tmp_path / "silu.gguf")
    (tmp_path / "text.txt").write_text(TEXT)
    places = {"OUT": str(tmp_path / "out.gguf"), "SILU": str(silu)}
    given = [places.get(w, w) for w in words]
    start = ["-f", str(tmp_path / "text.txt"), "-c", "32"]
    if "-m" not in given and "--random" not in given:
        start += ["-m", str(write_relu())]
    assert main(["sparse", "train", *start, *given]) == code
    assert expected in capfd.readouterr()[1]
    assert not (tmp_path / "out.gguf").exists()


def test_without_torch_the_command_says_how_to_get_it(write_relu, monkeypatch, capfd) -> None:
    monkeypatch.setattr("gguflow.cli.sparse.train.find_spec", lambda name: None)
    path = write_relu()
    assert main(["sparse", "train", "-m", str(path), "-f", str(path), "-o", "x.gguf"]) == 4
    assert "pip install 'gguflow[train]'" in capfd.readouterr()[1]
