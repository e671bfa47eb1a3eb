"""`gguflow bench --sequences`: llama-batched-bench's tests, columns and arithmetic."""

from __future__ import annotations

import csv
import json
import sqlite3
from argparse import Namespace

import pytest
from cli_helpers import one_line_error

from gguflow.cli.bench_grid import SequencesTest
from gguflow.cli.bench_sequences import measure, run_once
from gguflow.engine.model import Model
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Token

SMALL = ("--sequences", "1,3", "-npp", "5,70", "-ntg", "4", "-t", "1")
SIZES = [(5, 4, 1), (5, 4, 3), (70, 4, 1), (70, 4, 3)]


def rows_of(text: str) -> list[dict[str, str]]:
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    names = [name.strip() for name in lines[0]]
    return [dict(zip(names, map(str.strip, line), strict=True)) for line in lines[2:]]


def test_the_table(run, tiny_model: str) -> None:
    done = run("bench", "-m", tiny_model, *SMALL)
    assert done.returncode == 0, done.stderr
    assert (
        "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |"
        in done.stdout
    )
    rows = rows_of(done.stdout)
    assert [(int(r["PP"]), int(r["TG"]), int(r["B"])) for r in rows] == SIZES
    for r in rows:
        assert int(r["N_KV"]) == int(r["B"]) * (int(r["PP"]) + int(r["TG"]))
        assert float(r["T s"]) == pytest.approx(float(r["T_PP s"]) + float(r["T_TG s"]), abs=2e-3)
    # The same as an option of its own name.
    again = run("bench", "-m", tiny_model, "-npl", "1,3", *SMALL[2:])
    assert [r["N_KV"] for r in rows_of(again.stdout)] == [r["N_KV"] for r in rows]


def test_the_arithmetic(run, tiny_model: str) -> None:
    done = run("bench", "-m", tiny_model, *SMALL, "-o", "jsonl", "-r", "2", "--no-warmup")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(r["pp"], r["tg"], r["pl"]) for r in results] == SIZES
    for r in results:
        pp, tg, pl = r["pp"], r["tg"], r["pl"]
        assert r["speed_pp"] == pytest.approx(pl * pp / r["t_pp"])
        assert r["speed_tg"] == pytest.approx(pl * tg / r["t_tg"])
        assert r["speed"] == pytest.approx(pl * (pp + tg) / (r["t_pp"] + r["t_tg"]))
        assert r["n_kv"] == pl * (pp + tg) <= r["n_kv_max"] and r["is_pp_shared"] == 0
        assert r["model_filename"] == tiny_model


@pytest.mark.parametrize("form", ["csv", "json", "sql"])
def test_other_outputs(run, tiny_model: str, form: str) -> None:
    done = run("bench", "-m", tiny_model, *SMALL, "-o", form)
    if form == "csv":
        found = list(csv.DictReader(done.stdout.splitlines()))
    elif form == "json":
        found = json.loads(done.stdout)
    else:
        db = sqlite3.connect(":memory:")
        db.executescript(done.stdout)
        db.row_factory = sqlite3.Row
        found = list(db.execute("SELECT * FROM llama_bench"))
    assert [(int(r["pp"]), int(r["tg"]), int(r["pl"])) for r in found] == SIZES


def test_prompts_are_timed_before_tokens(tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sequence begins before any goes on, and each gets one token a run."""
    model = Model.load(tiny_model, n_threads=1, n_ctx=64, n_seqs=3, n_ubatch=32)
    engine = Engine(model, prompts_first=True)
    steps: list[list[Token]] = []
    step = engine.step

    def watched() -> list[Token]:
        steps.append(step())
        return steps[-1]

    monkeypatch.setattr(engine, "step", watched)
    test = SequencesTest(25, 6, 3, 512, 32, 1, "f16", "f16")
    seconds = run_once(engine, test, 0)
    assert min(seconds) > 0
    tokens = [[t.index for t in s] for s in steps]
    assert [i for s in tokens[:-6] for i in s] == [0, 0, 0]
    assert tokens[-6:] == [[i] * 3 for i in range(1, 7)]
    # Another run finds nothing of it in the cache.
    run_once(engine, test, 1)
    assert engine.stats.n_found == 0 and engine.stats.n_prompt == 150


def test_no_tokens_to_generate(tiny_model: str) -> None:
    model = Model.load(tiny_model, n_threads=1, n_ctx=64)
    args = Namespace(no_warmup=True, repetitions=None, override_tensor=[], device=None)
    args.vram_budget, args.split, args.cpu_experts, args.expert_use = 0, "", 0, ""
    args.devices, args.split_mode, args.tensor_split = (), "layer", ()
    args.equal_bits, args.cpu_ffn = False, 0
    result = measure(model, SequencesTest(9, 0, 2, 64, 64, 1, "f16", "f16"), args)
    assert result["speed_tg"] == 0 and result["speed_pp"] > 0


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("--sequences", "0"), "expected whole numbers from 1"),
        (("--sequences", "2", "-p", "5"), "-p: not with --sequences"),
        (("--sequences", "2", "-n", "5", "--sample"), "-n, --sample: not with --sequences"),
        (("-npp", "5"), "-npp: only with --sequences"),
        (("-ntg", "5"), "-ntg: only with --sequences"),
    ],
)
def test_arguments_that_do_not_go_together(run, tiny_model: str, args, what: str) -> None:
    done = run("bench", "-m", tiny_model, *args)
    assert done.returncode == 2
    assert what in one_line_error(done.stderr)
