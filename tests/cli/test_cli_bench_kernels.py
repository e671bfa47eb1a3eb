"""`gguflow bench --kernels`: which cases run, and the outputs."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace

import pytest
from cli_helpers import one_line_error

from gguflow.engine.kernel_bench import KernelTime, KernelTimer, all_cases, measure

ONE = ("--kernels", r"^rms_norm(_mul)? f32\[1,", "-t", "1")
FIELDS = {"build_commit", "cpu_info", "backend", "device", "name", "op", "kernel", "us", "bytes",
          "flops", "roof_us", "bound", "rival", "rival_us", "gbs", "gflops", "of_roof",
          "speedup"}  # fmt: skip


@pytest.fixture(autouse=True)
def short_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "FLUSH_BYTES", 1 << 20)


def test_outputs_hold_the_same(call) -> None:
    def output(form: str) -> str:
        code, out, err = call("bench", *ONE, "-o", form)
        assert code == 0, err
        assert err.startswith("cpu: 1 threads") and "GB/s read" in err
        return out

    results = json.loads(output("json"))
    lines = [json.loads(line) for line in output("jsonl").splitlines()]
    rows = list(csv.DictReader(output("csv").splitlines()))
    names = ["rms_norm f32[1,4096] 8B", "rms_norm_mul f32[1,4096] f32[4096] 8B"]
    for table in (results, lines, rows):
        assert [r["name"] for r in table] == names
        assert all(set(r) == FIELDS for r in table)
    assert all(r["us"] > 0 and r["bound"] == "memory" for r in results + lines)
    assert [r["bytes"] for r in results] == [int(r["bytes"]) for r in rows]
    header, rule, *body = output("md").splitlines()
    assert len({len(line) for line in (header, rule, *body)}) == 1
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in body]
    assert [c[0] for c in cells] == names and all(float(c[1]) > 0 for c in cells)


def test_all_of_them(call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole set goes through; what a case computes is left out, as it takes minutes."""
    done = KernelTime("name", "op", "kernel", 1.0, 1, 1)
    monkeypatch.setattr(KernelTimer, "measure", lambda self, case: replace(done, name=case.name))
    code, out, err = call("bench", "--kernels", "-t", "1", "-o", "jsonl")
    assert code == 0, err
    named = [json.loads(line)["name"] for line in out.splitlines()]
    lacking = {line.partition(":")[0] for line in err.splitlines() if "no kernel" in line}
    assert named == [c.name for c in all_cases() if c.op not in lacking]
    assert lacking == {
        "mul_mat_id_sum", "qkv_heads", "sigmoid_mul",
        "mul_mat_bias_add", "mul_mat_gelu", "mul_mat_joined", "mul_mat_two_add", "norm_mul_mat",
        "norm_mul_mat_geglu", "norm_mul_mat_swiglu", "norm_qkv_rope", "rms_norm_add",
    }  # fmt: skip


def test_a_backend_without_peaks_leaves_the_roof_out(call) -> None:
    code, out, err = call("bench", *ONE, "--backend", "numpy")
    assert code == 0 and "no measured peaks" in err
    assert [c.strip() for c in out.splitlines()[2].split("|")][5:8] == ["", "", ""]


def test_what_the_backend_lacks_is_said(call) -> None:
    code, out, err = call("bench", "--kernels", r"norm_mul_mat|rms_norm f32\[1,", "-t", "1")
    assert code == 0 and "rms_norm f32[1,4096]" in out
    assert "norm_mul_mat: some or all of its cases have no kernel on cpu" in err


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--kernels", "no such kernel"), "matches nothing; ops are mul_mat, "),
        (("--kernels", "("), "bad pattern"),
        (("--kernels", "neg", "--backend", "tpu"), "no backend called 'tpu'"),
        (("--kernels", "neg", "-o", "sql"), "-o sql: not with --kernels"),
        (("--kernels", "neg", "--compact-weights", "on"), "--compact-weights: not with --kernels"),
    ],
)
def test_bad_arguments(call, flags: tuple[str, ...], message: str) -> None:
    code, _, err = call("bench", *flags)
    assert code == 2 and message in one_line_error(err)


def test_no_gpu(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    code, out, err = call("bench", "--kernels", "--backend", "cuda")
    assert (code, out) == (4, "") and "needs CuPy" in one_line_error(err)
