"""`gguflow sparse stats|solve|show`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import one_line_error
from tiny_model import write_tiny

from gguflow.engine.variants.relu.split import open_split
from gguflow.engine.variants.relu.stats import read_stats

SPEEDS = ("--gpu-gbs", "1000", "--host-gbs", "0.01", "--sync-us", "10")
SOME = "0.00005"  # GiB: 70 of the tiny model's 192 neurons of 768 bytes


@pytest.fixture(scope="module")
def relu_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny(tmp_path_factory.mktemp("relu") / "relu model.gguf", "relullama", gain=2))


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("ABCDEFG" * 40)
    return str(path)


@pytest.fixture
def cache(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GGUFLOW_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_from_counts_to_a_split(call, cache: Path, relu_model: str, text: str, tmp_path) -> None:
    code, out, err = call("sparse", "stats", "-m", relu_model, "-f", text, "-c", "32")
    assert code == 0
    kept = list((cache / "sparse").glob("*.stats.gguf"))
    assert len(kept) == 1 and f"counts: {kept[0]}" in err
    stats = read_stats(kept[0])
    assert stats.n_tokens == 256 and "256 tokens" in out
    assert re.search(rf"^ +0 +{100 * stats.active_fraction[0]:.1f} ", out, re.M)

    split = tmp_path / "x.gpuidx"
    code, out, err = call("sparse", "solve", "-m", relu_model, "--ffn-budget", SOME, *SPEEDS,
                          "-o", str(split))  # fmt: skip
    assert code == 0 and f"split: {split}" in err
    stored = open_split(split)
    assert stored.model_hash == stats.model_hash and stored.vram_bytes == int(float(SOME) * 2**30)
    n_gpu = stored.split.n_gpu
    assert 60 <= sum(n_gpu) <= 69 and f"{sum(n_gpu)} of 192 neurons" in out
    for bucket, count in zip(stored.split.buckets, stats.counts, strict=True):
        left = np.setdiff1d(np.arange(96), bucket)
        assert count[bucket].min() >= count[left].max()

    code, out, err = call("sparse", "show", str(split), "--stats", str(kept[0]))
    assert code == 0 and err == "" and f"{sum(n_gpu)} of 192 neurons" in out
    share = 100 * stats.counts[0][stored.split.buckets[0]].sum() / stats.counts[0].sum()
    assert re.search(rf"^ +0 +{n_gpu[0]} +[\d.]+ +{share:.1f}$", out, re.M)
    code, out, err = call("sparse", "show", str(kept[0]))
    assert code == 0 and stats.model_hash in out


@pytest.mark.parametrize("arch", ["opt", "relufalcon"])
def test_models_without_a_gate(call, cache: Path, text: str, tmp_path: Path, arch: str) -> None:
    """Of two rows a neuron. That OPT runs densely by itself is no reason to place nothing."""
    model = str(write_tiny(tmp_path / "m.gguf", arch, gain=2, optional=("output.weight", "bias")))
    code, out, _ = call("sparse", "stats", "-m", model, "-f", text, "-c", "32")
    assert code == 0 and "256 tokens" in out
    code, out, _ = call("sparse", "solve", "-m", model, "--ffn-budget", SOME, *SPEEDS)
    found = re.search(r"^(\d+) of 192 neurons on the GPU", out, re.M)
    assert code == 0 and found and 95 <= int(found[1]) <= 104
    code, out, _ = call("sparse", "eval", "-m", model, "-f", text, "-c", "32")
    assert code == 0 and "| exact |" in out and "| dense |" in out


def test_counts_in_a_file(call, cache: Path, relu_model: str, text: str, tmp_path: Path) -> None:
    counts = str(tmp_path / "c.gguf")
    args = ("-m", relu_model, "-f", text, "-c", "32", "--chunks", "2", "-o", counts)
    assert call("sparse", "stats", *args)[0] == 0
    assert not cache.exists() and read_stats(counts).n_tokens == 64
    budget = ("--ffn-budget", SOME, *SPEEDS)
    code, out, _ = call("sparse", "solve", "-m", relu_model, *budget, "--stats", counts)
    assert code == 0 and "of 192 neurons on the GPU" in out
    code, out, err = call("sparse", "solve", "-m", relu_model, *budget)
    assert code == 3 and out == "" and "run `gguflow sparse stats`" in one_line_error(err)


def test_random_weights_are_placed_by_what_they_were_made_by(call, cache: Path) -> None:
    code, out, _ = call("sparse", "solve", "--random", "relu-tinyllama-1.1b:Q4_0",
                        "--ffn-budget", "0.1", "--gpu-gbs", "2000", "--host-gbs", "20",
                        "--sync-us", "20")  # fmt: skip
    assert code == 0
    found = re.search(r"^(\d+) of 123904 neurons.*expected.*: ([\d.]+) ms, ([\d.]+) ms", out, re.M)
    assert found and int(found[1]) > 25000
    # A fifth to a quarter of the neurons, and less than half of the work left to the host.
    assert float(found[2]) < 0.5 * float(found[3])


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("solve",), 2, "one of --vram-budget and --ffn-budget is needed"),
        (("solve", "--ffn-budget", "1", "--vram-budget", "1"), 2, "one of --vram-budget"),
        (("solve", "--vram-budget", "1", "--gpu-gbs", "2"), 2, "go with --ffn-budget"),
        (("solve", "--ffn-budget", "1", "--gpu-gbs", "0"), 2, "above 0"),
        (("solve", "--ffn-budget", "-1"), 2, "more than 0"),
        (("stats", "-m", "x.gguf", "--random", "relullama-7b"), 2, "exclude each other"),
        (("stats", "--random", "tinyllama-1.1b:Q4_0"), 3, "has no ReLU"),
        (("stats", "-o", "/nowhere/c.gguf"), 2, "-o /nowhere/c.gguf: no directory /nowhere"),
        (("solve", "--ffn-budget", "1", "-o", "/"), 2, "-o /: Is a directory"),
        (("solve", "--ffn-budget", "1", "--split", "x.gpuidx"), 2, "--split says which neurons"),
        (("show", "nothing.gguf"), 3, "nothing.gguf"),
    ],
)
def test_bad_arguments(call, cache: Path, args, code: int, message: str) -> None:
    found, out, err = call("sparse", *args)
    assert (found, out) == (code, "") and message in one_line_error(err)


def test_a_dense_run_is_not_placed(call, cache: Path, relu_model: str) -> None:
    code, _, err = call("sparse", "solve", "-m", relu_model, "--ffn-budget", "1", "--sparse", "off",
                        *SPEEDS)  # fmt: skip
    assert code == 2 and "--sparse off" in one_line_error(err)


def test_counts_of_another_model_are_refused(call, cache: Path, relu_model, text, tmp_path) -> None:
    other = str(write_tiny(tmp_path / "other.gguf", "relullama", seed=9))
    counts = str(tmp_path / "c.gguf")
    assert call("sparse", "stats", "-m", other, "-f", text, "-c", "32", "-o", counts)[0] == 0
    code, _, err = call("sparse", "solve", "-m", relu_model, "--ffn-budget", "1", *SPEEDS,
                        "--stats", counts)  # fmt: skip
    assert code == 3 and f"{counts}: statistics of another model" in one_line_error(err)
