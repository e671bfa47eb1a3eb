"""`gguflow bench`: llama-bench's grid, outputs and arithmetic."""

from __future__ import annotations

import csv
import json
import sqlite3
import sys
from argparse import Namespace
from statistics import mean, stdev

import pytest
from cli_helpers import one_line_error

from gguflow.cli.bench import measure
from gguflow.cli.bench_grid import BenchTest, grid, layer_counts, numbers, pair
from gguflow.cli.bench_model import model_type
from gguflow.cli.bench_output import record
from gguflow.engine.limits import ALL_LAYERS, AUTO_LAYERS
from gguflow.engine.load import open_model
from gguflow.engine.model import Model

SMALL = ("-p", "6", "-n", "3", "-pg", "4,2", "-d", "0,5", "-r", "2", "-t", "1")
NAMES = ["pp6", "tg3", "pp4+tg2", "pp6 @ d5", "tg3 @ d5", "pp4+tg2 @ d5"]


def test_lists_and_ranges() -> None:
    convert = numbers(0)
    assert convert("1,2,8") == [1, 2, 8]
    assert convert("2-5") == [2, 3, 4, 5]
    assert convert("1-8+3") == [1, 4, 7]
    assert convert("16-128*2,5") == [16, 32, 64, 128, 5]
    assert pair("512,128") == [(512, 128)]
    assert layer_counts("0,8-16*2,auto,all") == [0, 8, 16, AUTO_LAYERS, ALL_LAYERS]


def test_grid_is_every_combination_tests_innermost() -> None:
    args = Namespace(n_prompt=[8, 0], n_gen=[2], pg=[(4, 1)], n_depth=[0], batch_size=[32],
                     ubatch_size=[16, 32], threads=[1, 2], cache_type_k=["f16"],
                     cache_type_v=["f16"], gpu_layers=[0], sample=False)  # fmt: skip
    tests = grid(args, 9)
    assert [(t.name, t.n_ubatch, t.n_threads) for t in tests] == [
        (name, ub, n) for ub in (16, 32) for n in (1, 2) for name in ("pp8", "tg2", "pp4+tg1")
    ]
    assert grid(Namespace(**vars(args) | {"threads": []}), 9)[0].n_threads == 9


def test_record_is_mean_and_sample_deviation() -> None:
    test = BenchTest(10, 5, 3, 32, 16, 2, "f16", "f32")
    ns = [1_000_000, 2_000_000, 4_000_000]
    r = record({"build_commit": "x"}, test, "2025-01-01T00:00:00Z", ns)
    ts = [15 / (n * 1e-9) for n in ns]
    assert r["samples_ns"] == ns and r["samples_ts"] == pytest.approx(ts)
    assert r["avg_ns"] == round(mean(ns)) and r["stddev_ns"] == round(stdev(ns))
    assert r["avg_ts"] == pytest.approx(mean(ts)) and r["stddev_ts"] == pytest.approx(stdev(ts))
    assert (r["n_prompt"], r["n_gen"], r["n_depth"], r["type_v"]) == (10, 5, 3, "f32")
    assert record({}, test, "", [5])["stddev_ts"] == 0


def test_json_is_one_document_with_llama_bench_fields(run, tiny_model: str) -> None:
    done = run("bench", "-m", tiny_model, *SMALL, "-o", "json", "--progress")
    assert done.returncode == 0
    results = json.loads(done.stdout.splitlines()[-1])
    assert json.loads(done.stdout) == results and len(results) == 6
    r = results[0]
    assert {"build_commit", "build_number", "cpu_info", "gpu_info", "backends", "model_filename",
            "model_type", "model_size", "model_n_params", "n_batch", "n_ubatch", "n_threads",
            "type_k", "type_v", "n_gpu_layers", "sampled", "tensor_buft_overrides", "n_prompt",
            "n_gen",
            "n_depth", "test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns",
            "samples_ts"} == set(r)  # fmt: skip
    assert [(x["n_prompt"], x["n_gen"], x["n_depth"]) for x in results] == [
        (p, n, d) for d in (0, 5) for p, n in ((6, 0), (0, 3), (4, 2))
    ]
    assert all(len(x["samples_ns"]) == 2 and min(x["samples_ns"]) > 0 for x in results)
    assert r["model_filename"] == tiny_model and r["n_threads"] == 1
    weights = open_model(tiny_model).weights.values()
    assert r["model_n_params"] == sum(w.read().size // 4 for w in weights)
    assert r["model_size"] == 4 * r["model_n_params"]
    assert "bench: 6/6" in done.stderr


@pytest.mark.parametrize("mode", ["none", "layer", "tensor"])
def test_a_model_in_parts_is_no_larger(call, tiny_model: str, mode: str) -> None:
    code, out, _ = call("bench", "-m", tiny_model, "-p", "4", "-n", "0", "-r", "1", "-o", "json",
                        "--devices", "simulated:0,simulated:1", "-sm", mode)  # fmt: skip
    assert code == 0
    (r,) = json.loads(out)
    weights = open_model(tiny_model).weights.values()
    assert r["model_size"] == sum(w.nbytes for w in weights)
    assert r["model_n_params"] == sum(w.read().size // 4 for w in weights)


def test_markdown(call, tiny_model: str) -> None:
    code, out, err = call("bench", "-m", tiny_model, *SMALL)
    assert (code, err) == (0, "")
    header, rule, *rows = [line for line in out.splitlines() if line.startswith("|")]
    cells = [[c.strip() for c in row.strip("|").split("|")] for row in rows]
    names = [c.strip() for c in header.strip("|").split("|")]
    assert names == ["model", "size", "params", "backend", "threads", "test", "t/s"]
    assert [row[5] for row in cells] == NAMES
    # Columns begin together; a large spread may make the last cell wider than its column.
    assert len({row.rindex("|", 0, -1) for row in (header, rule, *rows)}) == 1
    assert all(float(row[6].split(" ± ")[0]) > 0 for row in cells)
    out = call("bench", "-m", tiny_model, "-p", "4", "-n", "0", "-r", "1", "-ub", "2,4")[1]
    assert "n_ubatch" in out.splitlines()[0] and "tg" not in out


def test_csv_jsonl_and_sql_hold_the_same(call, tiny_model: str) -> None:
    def output(form: str) -> str:
        code, out, _ = call("bench", "-m", tiny_model, *SMALL, "-o", form)
        assert code == 0
        return out

    rows = list(csv.DictReader(output("csv").splitlines()))
    lines = [json.loads(line) for line in output("jsonl").splitlines()]
    db = sqlite3.connect(":memory:")
    db.row_factory = sqlite3.Row
    db.executescript(output("sql"))
    table = [dict(r) for r in db.execute("SELECT * FROM llama_bench")]
    assert len(rows) == len(lines) == len(table) == 6
    for row, line, record_ in zip(rows, lines, table, strict=True):
        fields = [k for k in line if not k.startswith("samples")]
        assert list(row) == fields == list(record_)
        for k in ("model_filename", "model_size", "n_prompt", "n_gen", "n_depth", "type_k"):
            assert row[k] == str(line[k]) and record_[k] == line[k]
        assert record_["avg_ts"] > 0


def test_tokens_computed(tiny_model: str) -> None:
    """What is timed is what the name says: the depth stays, the rest is computed each time."""
    model = Model.load(tiny_model, n_ctx=64)
    session = model.new_session()
    steps: list[tuple[int, int]] = []
    step = session.step

    def spy(ids, *rest, **named):
        steps.append((len(session.tokens), len(ids)))
        return step(ids, *rest, **named)

    session.step = spy  # type: ignore[method-assign]
    results = []
    out = Namespace(add=results.append)
    test = BenchTest(4, 2, 5, 32, 32, 1, "f16", "f16")
    args = Namespace(no_warmup=False, repetitions=2)
    measure(session, test, args, None, {}, out)  # type: ignore[arg-type]
    once = [(5, 4), (9, 1), (10, 1)]
    assert steps == [(0, 5), *once[:2], *once, *once]
    assert len(results[0]["samples_ns"]) == 2
    steps.clear()
    session.rewind(0)
    args.no_warmup = True
    measure(session, BenchTest(0, 2, 0, 32, 32, 1, "f16", "f16"), args, None, {}, out)  # type: ignore[arg-type]
    assert steps == [(0, 1), (1, 1)] * 2


def test_sampled_tokens_come_next(call, tiny_model: str) -> None:
    """As many runs as without, the first on a random token and each other on the one before."""
    model = Model.load(tiny_model, n_ctx=64)
    session = model.new_session()
    steps: list[tuple[int, ...]] = []
    step = session.step

    def spy(ids, *rest, **named):
        steps.append(tuple(ids))
        result = step(ids, *rest, **named)
        chosen.append(int(result[-1][0]) if rest[-1] is not None else -1)
        return result

    chosen: list[int] = []
    session.step = spy  # type: ignore[method-assign]
    test = BenchTest(4, 3, 5, 32, 32, 1, "f16", "f16", 0, True)
    args = Namespace(no_warmup=True, repetitions=1)
    measure(session, test, args, None, {}, Namespace(add=lambda result: None))  # type: ignore[arg-type]
    assert [len(ids) for ids in steps] == [5, 4, 1, 1, 1]
    assert [ids[0] for ids in steps[3:]] == chosen[2:4] and chosen[:2] == [-1, -1]
    code, out, err = call("bench", "-m", tiny_model, *SMALL, "--sample")
    assert code == 0, err
    names = [row.split("|")[6].strip() for row in out.splitlines()[2:8]]
    assert names[:3] == ["pp6", "tg3 sampled", "pp4+tg2 sampled"]
    assert names[4] == "tg3 sampled @ d5"


def test_profile_of_a_bench(call, tiny_model: str, tmp_path) -> None:
    path = tmp_path / "b.jsonl"
    code, _, err = call("bench", "-m", tiny_model, "-p", "4", "-n", "2", "-r", "2", "--profile",
                        str(path))  # fmt: skip
    assert code == 0 and str(path) in err
    steps = [x for x in map(json.loads, path.read_text().splitlines()) if x["kind"] == "step"]
    assert [s["phase"] for s in steps] == ["prefill"] * 2 + ["decode"] * 4  # no warmup among them


def test_layers_on_a_gpu(call, tiny_model: str, imaginary_gpu) -> None:
    flags = ("-p", "4", "-n", "2", "-d", "0,3", "-r", "1", "-t", "1", "--device", "1")
    code, out, err = call("bench", "-m", tiny_model, *flags, "-ngl", "0,1,all", "-o", "jsonl")
    assert code == 0, err
    results = [json.loads(line) for line in out.splitlines()]
    assert [(r["n_gpu_layers"], r["n_depth"], r["n_prompt"]) for r in results] == [
        (layers, d, p) for layers in (0, 1, 3) for d in (0, 3) for p in (4, 0)
    ]
    where = [("", "CPU")] * 4 + [("Imaginary GPU", "CUDA")] * 8
    assert [(r["gpu_info"], r["backends"]) for r in results] == where
    assert [o["device"] for o in imaginary_gpu] == [1, 1]
    assert [line for line in err.splitlines() if "layers" in line] == [
        "1 of 3 layers on cuda:0", "3 of 3 layers on cuda:0"
    ]  # fmt: skip
    table = call("bench", "-m", tiny_model, *flags, "-ngl", "all")[1].splitlines()
    at = [c.strip() for c in table[0].split("|")].index("ngl")
    assert [row.split("|")[at].strip() for row in table[2:6]] == ["3"] * 4


def test_profile_on_a_gpu(call, tiny_model: str, imaginary_gpu, tmp_path) -> None:
    path = tmp_path / "p.jsonl"
    code, _, err = call("bench", "-m", tiny_model, "-p", "4", "-n", "0", "-r", "1", "-ngl", "all",
                        "--profile", str(path))  # fmt: skip
    assert code == 0, err
    header, *rows = map(json.loads, path.read_text().splitlines())
    assert header["machine"].startswith("Imaginary GPU, ") and "cuda:0" in header["peaks"]
    ops = [r for r in rows if r["kind"] == "op" and r["backend"] == "cuda:0"]
    assert ops and all(r["share"] is not None for r in ops)


def test_tensors_on_a_gpu(call, tiny_model: str, imaginary_gpu) -> None:
    code, out, _ = call("bench", "-m", tiny_model, "-p", "4", "-n", "0", "-r", "1", "-ot",
                        "ffn.*=cuda,attn_q=cpu", "-o", "jsonl")  # fmt: skip
    result = json.loads(out)
    assert code == 0 and result["gpu_info"] == "Imaginary GPU"
    assert result["tensor_buft_overrides"] == "ffn.*=cuda;attn_q=cpu"


def test_layers_without_a_gpu(call, tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    for flags in (("-ngl", "99"), ("-ot", "ffn=cuda")):
        code, _, err = call("bench", "-m", tiny_model, *flags)
        assert code == 4 and "needs CuPy" in one_line_error(err)
    code, _, err = call("bench", "-m", tiny_model, "-ngl", "0,some")
    assert code == 2 and "some" in one_line_error(err)


def test_several_models_and_random_weights(call, tiny_model: str) -> None:
    code, out, _ = call("bench", "-m", tiny_model, "--random", "smollm2-135m:Q4_0", "-p", "1",
                        "-n", "0", "--equal-bits", "-r", "1", "--no-warmup",
                        "-o", "jsonl")  # fmt: skip
    assert code == 0
    first, second = map(json.loads, out.splitlines())
    assert first["model_type"] == model_type(open_model(tiny_model))
    assert first["model_type"].startswith("llama ") and first["model_type"].endswith(" F32")
    assert second["model_type"] == "smollm2-135m Q4_0"
    assert 130e6 < second["model_n_params"] < 140e6
