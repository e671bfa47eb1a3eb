"""bench/versus.py: what it writes and runs, beside a peer that is a script."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gguflow.engine.load import open_model
from gguflow.engine.load.random import random_model
from gguflow.models.base import ModelError
from gguflow.models.shapes import SHAPES, as_in_files, parse_shape

SCRIPT = Path(__file__).parents[2] / "bench" / "versus.py"
# Answers as llama-bench does; writes its arguments beside the model; fails for a type it was told.
PEER = """#!{python}
import json, sys
a = dict(zip(sys.argv[1::2], sys.argv[2::2]))
open({log!r}, "a").write(json.dumps(a) + "\\n")
if "{fails}" in open(a["-m"], "rb").read(4096).decode("latin1"):
    sys.exit("no such architecture")
tests = [(int(n), 0) for n in a["-p"].split(",")] + [(0, int(n)) for n in a["-n"].split(",")]
print("a line of log")
print(json.dumps([
    {{"n_prompt": p, "n_gen": n, "n_depth": int(a["-d"]), "avg_ts": 2.0}} for p, n in tests if p + n
]))
"""


@pytest.fixture(scope="module")
def versus() -> ModuleType:
    spec = importlib.util.spec_from_file_location("versus", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_peer(folder: Path, fails: str = "nothing") -> tuple[Path, Path]:
    """The script, and the file it logs to."""
    script, log = folder / "llama-bench", folder / "log"
    script.write_text(PEER.format(python=sys.executable, log=str(log), fails=fails))
    script.chmod(0o755)
    return script, log


def test_tests_by_depth(versus: ModuleType) -> None:
    tests = versus.parse_tests("pp512,tg128,tg32@d8192, pp16")
    assert tests == {0: [("pp", 512), ("tg", 128), ("pp", 16)], 8192: [("tg", 32)]}
    assert versus.test_flags(0, tests[0]) == ["-p", "512,16", "-n", "128", "-d", "0"]
    assert versus.test_flags(8192, tests[8192]) == ["-p", "0", "-n", "32", "-d", "8192"]
    for bad in ("pp", "tg0", "xx5", "pp5@8", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="expected ppN or tgN"):
            versus.parse_tests(bad)


def test_the_file_is_the_random_model(versus: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    versus.write_model("smollm2-135m:Q4_K_M", path)
    written, drawn = open_model(path), random_model("smollm2-135m:Q4_K_M")
    assert written.weights.keys() == drawn.weights.keys()
    assert 0 <= path.stat().st_size - versus.file_bytes("smollm2-135m:Q4_K_M") < 1 << 20
    for name in list(drawn.weights)[:12]:
        a, b = written.weights[name], drawn.weights[name]
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.array_equal(a.read().reshape(-1), b.read().reshape(-1)), name


def test_a_model_too_large_for_memory_goes_to_disk(
    versus: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versus, "free_memory", lambda: 1000)
    monkeypatch.setattr(versus.tempfile, "gettempdir", lambda: "/disk")
    assert versus.folder_for(900) == "/disk"
    if Path("/dev/shm").is_dir():
        assert versus.folder_for(700) == "/dev/shm"


Run = Callable[[Path, str], int]


@pytest.fixture
def run(versus: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the script with a peer on models of shapes `one` and `two`; returns the exit code."""
    hp, _ = SHAPES["smollm2-135m"]
    monkeypatch.setitem(SHAPES, "one", (replace(hp, n_vocab=256, n_layer=1), True))
    monkeypatch.setitem(SHAPES, "two", (replace(hp, n_vocab=256, n_layer=2, arch="qwen2"), True))

    def run_(peer: Path, models: str) -> int:
        command = ["versus", "--peer", str(peer), "--random", models, "--tests", "pp4,tg2,tg1@d3",
                   "-t", "1", "-r", "1", "--rounds", "2", "--folder", str(tmp_path)]  # fmt: skip
        monkeypatch.setattr(sys, "argv", command)
        return int(versus.main())

    return run_


def test_a_round_runs_both(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peer, log = write_peer(tmp_path)
    assert run(peer, "one:Q4_0") == 0
    lines = capsys.readouterr().out.splitlines()
    results = json.loads(lines[-1])["results"]
    assert [(r["test"], r["peer"], len(r["gguflow"])) for r in results] == [
        (t, [2.0, 2.0], 2) for t in ("pp4", "tg2", "tg1@d3")
    ]
    rows = [line for line in lines if line.startswith("| one:Q4_0 |")]
    assert len(rows) == 3 and all(min(r["gguflow"]) > 0 for r in results)
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(c["-p"], c["-n"], c["-d"]) for c in calls] == [("4", "2", "0"), ("0", "1", "3")] * 2
    assert all(c["-ngl"] == "0" and "-fa" not in c for c in calls)
    assert not list(tmp_path.glob("versus-*"))  # the model is gone


def test_a_peer_that_fails_does_not_end_the_others(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer, _ = write_peer(tmp_path, fails="qwen2")
    assert run(peer, "two:Q4_0,one:Q8_0") == 1
    out, err = capsys.readouterr()
    assert "two:Q4_0: " in err and "no such architecture" in err
    assert {r["model"] for r in json.loads(out.splitlines()[-1])["results"]} == {"one:Q8_0"}
    with pytest.raises(ModelError, match="unknown shape"):
        run(peer, "one:Q4_0,three:Q4_0")


def test_a_gpu_means_flash_attention(
    versus: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(versus, "measure", lambda command: commands.append(command) or {})
    args = argparse.Namespace(ngl=99, repetitions=1, threads=None, rounds=1, peer="lb", sample=True,
                              cpu_moe=True, cards=1, tests={0: [("tg", 2)]})  # fmt: skip
    versus.compare(tmp_path / "m.gguf", args)
    ours, theirs = commands
    assert "--sample" in ours and "--sample" not in theirs
    assert "-fa" not in ours and theirs[theirs.index("-fa") + 1] == "1"
    assert [c[c.index("-ngl") + 1] for c in commands] == ["99", "99"]
    assert "-t" not in ours + theirs
    assert "--cpu-moe" in ours and theirs[theirs.index("-ncmoe") + 1] == "999"
    commands.clear()
    args.cards, args.cpu_moe = 2, False
    versus.compare(tmp_path / "m.gguf", args)
    ours, theirs = commands
    assert [c[c.index("-sm") + 1] for c in commands] == ["tensor", "tensor"]
    assert ours[ours.index("--devices") + 1] == "cuda:0,cuda:1" and "-ngl" not in ours
    assert theirs[theirs.index("-ngl") + 1] == "99" and "--devices" not in theirs


@pytest.mark.parametrize(
    ("shape", "there", "not_there"),
    [
        ("phi3-mini:Q4_K_M", ["attn_qkv.weight", "ffn_up.weight"],
         ["attn_q.weight", "ffn_gate.weight"]),
        ("falcon-7b:Q4_0", ["attn_qkv.weight", "attn_norm.bias"],
         ["attn_v.weight", "attn_norm_2.bias"]),
        ("gpt-oss-20b:MXFP4_MOE", ["attn_q.bias", "ffn_down_exps.bias"], ["attn_qkv.weight"]),
    ],
)  # fmt: skip
def test_tensors_are_those_of_published_files(
    shape: str, there: list[str], not_there: list[str]
) -> None:
    """Other programs refuse a file that has parts where they know the whole, or lacks a bias."""
    arch, tensors = parse_shape(shape)
    files = {name: (shape, dtype) for name, shape, dtype in as_in_files(arch, tensors)}
    assert {f"blk.3.{name}" for name in there} <= files.keys()
    assert not {f"blk.3.{name}" for name in not_there} & files.keys()
    assert sum(d.array_bytes(s) for s, d in files.values()) == sum(
        d.array_bytes(s) for _, s, d in tensors
    )
    known = {w.name: w for w in arch.weights()} | {
        w.part.of: replace(w, shape=w.part.whole(w.shape)) for w in arch.weights() if w.part
        if w.part.of in files
    }  # fmt: skip
    assert all(known[name].fits(shape) for name, (shape, _) in files.items())
