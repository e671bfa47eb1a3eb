"""`gguflow perplexity`: llama-perplexity's figures, and the comparison of types."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import one_line_error
from tiny_model import write_tiny

from gguflow.engine import evaluate
from gguflow.engine.evaluate import log_softmax, windows
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.requantize import native_converter, requantize
from gguflow.models.mixes import MIXES, find_mix

Call = Callable[..., tuple[int, str, str]]
TEXT = "the quick brown fox jumps over the lazy dog, 12 times; " * 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose rows every type divides, in F32."""
    folder = tmp_path_factory.mktemp("m")
    (folder / "text.txt").write_text(TEXT)
    return write_tiny(folder / "m.gguf", n_embd=256, n_ff=256, n_layer=2, gain=2.0)


def ask(call: Call, model: Path, *words: str) -> list[dict[str, float]]:
    text = str(model.parent / "text.txt")
    code, out, err = call(
        "perplexity", "-m", str(model), "-f", text, "-c", "64", "-t", "1", "-o", "json", *words
    )
    assert code == 0, err
    rows: list[dict[str, float]] = json.loads(out)
    return rows


# llama-perplexity -m stories260K.gguf -f TEXT -c 512 (llama.cpp with ggml 0.25.3), on the bundled
# text's first 40,000 characters: with --chunks 8, and with --chunks 2 after llama-quantize.
@pytest.mark.parametrize(
    ("mix", "chunks", "expected", "error", "tolerance"),
    [(None, "8", 17.6210, 0.96824, 1e-4), (None, "2", 15.6001, 1.70160, 1e-4),
     ("F16", "2", 15.5987, 1.70107, 5e-3), ("Q8_0", "2", 15.5415, 1.69591, 5e-3),
     ("Q4_0", "2", 16.4437, 1.76043, 5e-3)],
)  # fmt: skip
def test_it_is_llama_cpps_figure(
    call: Call, shared_data: Path, tmp_path: Path, mix: str | None, chunks: str,
    expected: float, error: float, tolerance: float,
) -> None:  # fmt: skip
    from gguflow.cli.perplexity import read_text

    text = tmp_path / "text.txt"
    text.write_text(read_text(None)[:40000], encoding="utf-8")
    path = shared_data / "stories260K.gguf"
    if mix:
        assert call("quantize", str(path), str(tmp_path / "q.gguf"), mix)[0] == 0
        path = tmp_path / "q.gguf"
    code, out, err = call(
        "perplexity", "-m", str(path), "-f", str(text), "--chunks", chunks, "-o", "json"
    )
    assert code == 0, err
    (row,) = json.loads(out)
    assert row["n_tokens"] == 255 * int(chunks)
    assert row["perplexity"] == pytest.approx(expected, rel=tolerance)
    assert row["perplexity_error"] == pytest.approx(error, rel=2 * tolerance)


def test_against_the_definitions(call: Call, model: Path, tmp_path: Path) -> None:
    """The same figures from whole logits and plain formulas."""
    rows = {r["model"]: r for r in ask(call, model, "--types", "Q4_0,q2_k")}
    assert list(rows) == ["F32", "Q4_0", "Q2_K"]

    source, by = open_model(model), native_converter(1)
    tok = Model.load(model).tokenizer
    chunks = windows(tok.encode(TEXT), 64, tok.bos)
    p = {}
    for name in rows:
        m = Model(requantize(source, find_mix(name), by), Options(n_ctx=64, n_threads=1))
        m.load_weights()
        x = np.stack([m.logits(c)[32:63] for c in chunks]).astype(np.float64)
        e = np.exp(x - x.max(-1, keepdims=True))
        p[name] = (e / e.sum(-1, keepdims=True)).reshape(-1, x.shape[-1])
    targets = np.concatenate([c[33:] for c in chunks])
    for name, row in rows.items():
        loss = -np.log(p[name][np.arange(len(targets)), targets])
        assert row["n_tokens"] == len(targets)
        assert row["nll"] == pytest.approx(loss.mean(), rel=1e-5)
        assert row["perplexity"] == pytest.approx(np.exp(loss.mean()), rel=1e-5)
        error = loss.std(ddof=1) / len(loss) ** 0.5
        assert row["perplexity_error"] == pytest.approx(np.exp(loss.mean()) * error, rel=1e-4)
        if name == "F32":
            assert "mean_kl" not in row
            continue
        kl = (p["F32"] * np.log(p["F32"] / p[name])).sum(-1)
        assert row["mean_kl"] == pytest.approx(kl.mean(), rel=1e-3)
        assert row["p99_kl"] == pytest.approx(np.percentile(kl, 99), rel=1e-3)
        same = (p["F32"].argmax(-1) == p[name].argmax(-1)).mean()
        assert row["same_top"] == pytest.approx(same)
        difference = row["perplexity"] - rows["F32"]["perplexity"]
        assert row["perplexity_difference"] == pytest.approx(difference)


def test_all_types(call: Call, model: Path) -> None:
    rows = {r["model"]: r for r in ask(call, model, "--types", "all")}
    assert list(rows) == list(MIXES)
    kl = {n: r["mean_kl"] for n, r in rows.items() if n != "F32"}
    assert 0 < kl["Q8_0"] < kl["Q6_K"] < kl["Q5_K_S"] < kl["Q4_K_S"] < kl["Q3_K_S"] < kl["Q2_K"]
    bits = {n: r["bits_per_weight"] for n, r in rows.items()}
    assert bits["F32"] == 32
    assert 16 < bits["F16"] < 16.1
    assert bits["Q2_K"] < bits["Q3_K_S"] < bits["Q4_K_S"] < bits["Q4_K_M"] < bits["Q5_K_M"]


def test_models_in_groups_and_blocks_of_any_size(
    call: Call, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--types", "Q4_0,Q8_0,Q6_K")
    together = ask(call, model, *words)
    monkeypatch.setattr(evaluate, "GROUP_BYTES", 1)
    assert ask(call, model, *words) == together
    monkeypatch.setattr(evaluate, "BLOCK_BYTES", 4 * 96 * 7)  # seven positions at a time
    assert ask(call, model, *words) == together


def test_a_reference_file(call: Call, model: Path, tmp_path: Path) -> None:
    q4 = tmp_path / "q4.gguf"
    assert call("quantize", str(model), str(q4), "Q4_0")[0] == 0
    of_types = ask(call, model, "--types", "Q4_0")
    (tmp_path / "text.txt").write_text(TEXT)
    of_files = ask(call, q4, "--reference", str(model))
    assert [r["model"] for r in of_files] == ["m.gguf", "q4.gguf"]
    for a, b in zip(of_types, of_files, strict=True):
        assert {k: v for k, v in a.items() if k != "model"} == {
            k: v for k, v in b.items() if k != "model"
        }


def test_the_table(call: Call, model: Path) -> None:
    text = str(model.parent / "text.txt")
    words = ("perplexity", "-m", str(model), "-f", text, "-c", "64", "--chunks", "3")
    _, out, _ = call(*words)
    assert len(out.splitlines()) == 3
    assert "KL" not in out
    code, out, err = call(*words, "--types", "Q4_0")
    assert code == 0
    assert "3 windows of 64 tokens" in err
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in out.splitlines()]
    assert {len(cells) for cells in lines} == {8}
    assert [cells[0] for cells in lines] == ["model", ":---", "F32", "Q4_0"]
    (row,) = ask(call, model, "--chunks", "3", "--types", "Q4_0")[1:]
    assert lines[3][3].startswith(f"{row['perplexity']:.4f}")
    assert lines[3][5] == f"{row['mean_kl']:.6f}"


def test_on_a_gpu(call: Call, model: Path, imaginary_gpu: list[dict[str, object]]) -> None:
    (here,) = ask(call, model)
    (there,) = ask(call, model, "-ngl", "all", "--device", "2")
    assert [o["device"] for o in imaginary_gpu] == [2]
    assert there["n_tokens"] == here["n_tokens"]
    assert there["perplexity"] == pytest.approx(here["perplexity"], rel=1e-3)
    ask(call, model, "-ot", "ffn=cuda")
    assert len(imaginary_gpu) == 2


def test_no_gpu(call: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    code, out, err = call("perplexity", "-m", str(model), "-f", str(model.parent / "text.txt"),
                          "-c", "64", "-ngl", "99")  # fmt: skip
    assert (code, out) == (4, "") and "needs CuPy" in err


def test_windows() -> None:
    ids = list(range(10, 21))
    assert windows(ids, 4, 1) == [[1, 11, 12, 13], [1, 15, 16, 17]]
    assert windows(ids, 4, None) == [[10, 11, 12, 13], [14, 15, 16, 17]]
    assert windows(ids, 11, None) == [ids]
    with pytest.raises(evaluate.TextTooShort, match="11 tokens, one window needs 12"):
        windows(ids, 12, None)


def test_log_softmax_of_large_logits() -> None:
    x = np.array([[1000.0, 999.0, -1000.0], [0.0, 0.0, 0.0]], np.float32)
    p = np.exp(log_softmax(x.copy()))
    assert p[0] == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.e), 0], rel=1e-5)
    assert p[1] == pytest.approx([1 / 3] * 3, rel=1e-6)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [(["-c", "3"], 2, "-c/--ctx-size"),
     (["-c", "4096"], 2, "tokens, one window needs 4096; give a longer text with -f or lower -c"),
     (["--types", "Q4_9"], 2, "unknown quantization 'Q4_9'"),
     (["--types", ""], 2, "unknown quantization ''"),
     (["--chunks", "0"], 2, "--chunks"),
     (["-f", "/nowhere/t.txt"], 2, "-f /nowhere/t.txt: No such file"),
     (["-f", "/"], 2, "-f /: Is a directory"),
     (["-f", "BINARY"], 2, "not UTF-8 text (byte 2)"),
     (["-m", "/nowhere/m.gguf"], 3, "/nowhere/m.gguf"),
     (["--reference", "/nowhere/m.gguf"], 3, "/nowhere/m.gguf"),
     (["--reference", "OTHER"], 2, "90 tokens in the vocabulary"),
     (["-o", "csv"], 2, "-o/--output")],
)  # fmt: skip
def test_bad_arguments(
    call: Call, model: Path, tmp_path: Path, words: list[str], code: int, expected: str
) -> None:
    (tmp_path / "binary").write_bytes(b"ab\xff")
    other = write_tiny(tmp_path / "other.gguf", n_vocab=90)
    places = {"BINARY": str(tmp_path / "binary"), "OTHER": str(other)}
    text = str(model.parent / "text.txt")
    found, stdout, err = call(
        "perplexity", "-m", str(model), "-f", text, "-c", "64", *(places.get(w, w) for w in words)
    )
    assert (found, stdout) == (code, "")
    # What was found out before the fault may stand before it.
    assert expected in one_line_error("\n".join(err.splitlines()[-1:]))
