"""`gguflow profile`: tables, dumps, differences."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_helpers import one_line_error


@pytest.fixture
def dump(call, tiny_model: str, tmp_path: Path) -> str:
    path = str(tmp_path / "run.jsonl")
    code, _, err = call("profile", "-m", tiny_model, "--pp", "5", "--tg", "3", "--profile", path)
    assert code == 0 and f"profile: {path}" in err
    return path


def test_tables(call, tiny_model: str) -> None:
    code, out, _ = call("profile", "-m", tiny_model, "--pp", "5", "--tg", "3")
    assert code == 0
    assert out.splitlines()[0].startswith("tiny model.gguf, ")
    assert out.count("prefill: 1 step, 5 tokens") == 3  # by op, by module, by layer
    assert out.count("decode: 3 steps, 3 tokens") == 3
    for cell in ("attention", "attn.kqv", "blk.1", "host", "of peak"):
        assert cell in out
    code, out, _ = call("profile", "-m", tiny_model, "-p", "AB", "--tg", "2", "--by", "layer",
                        "--phase", "decode", "--limit", "1")  # fmt: skip
    assert code == 0 and "decode: 2 steps" in out and re.search(r"\d+ more", out)
    assert "prefill" not in out and "attn.kqv" not in out


def test_dump_holds_the_measured_steps(dump: str) -> None:
    rows = [json.loads(line) for line in Path(dump).read_text().splitlines()]
    steps = [(r["phase"], r["n_tokens"], r["n_past"]) for r in rows if r["kind"] == "step"]
    assert steps == [("prefill", 5, 0), ("decode", 1, 5), ("decode", 1, 6), ("decode", 1, 7)]
    for s in (r for r in rows if r["kind"] == "step"):
        us = sum(r["us"] for r in rows if r["kind"] == "op" and r["step"] == s["step"])
        assert us == pytest.approx(s["wall_us"], rel=0.01)


def test_from_prints_a_dump_again(call, dump: str) -> None:
    code, out, err = call("profile", "--from", dump, "--by", "op")
    assert (code, err) == (0, "")
    assert "prefill: 1 step, 5 tokens" in out and "attention" in out


def test_diff(call, dump: str) -> None:
    code, out, err = call("profile", "--diff", dump, dump)
    assert (code, err) == (0, "")
    assert "whole step" in out and "+0.0 %" in out and "blk.0.attn.kqv" in out


def test_random_shape(call) -> None:
    code, out, _ = call("profile", "--random", "smollm2-135m:Q4_0", "--pp", "0", "--tg", "1",
                        "--by", "op", "-c", "8")  # fmt: skip
    assert code == 0 and "smollm2-135m:Q4_0" in out and "decode: 1 step" in out


def test_bad_arguments(call, tiny_model: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    for args, code, words in (
        (("--pp", "0", "--tg", "0"), 2, "nothing to run"),
        (("--pp", "60", "--tg", "5"), 2, "65 tokens do not fit the context of 64"),
        (("-p", "A", "--pp", "5"), 2, "-p/--prompt and --pp exclude each other"),
        (("--by", "colour"), 2, "--by: invalid choice: 'colour'"),
        (("--from", "/nowhere.jsonl"), 3, "/nowhere.jsonl: No such file"),
        (("--from", str(tmp_path / "x.jsonl")), 3, "x.jsonl:1"),
        (("--diff", "a"), 2, "--diff: expected 2 arguments"),
        (("--from", "a", "--diff", "a", "b"), 2, "exclude each other"),
    ):
        found, out, err = call("profile", "-m", tiny_model, *args)
        assert (found, out) == (code, ""), args
        assert words in one_line_error(err)
    code, _, err = call("profile", "--random", "tinyllama-1.1b:Q4_0", "-p", "A")
    assert code == 2 and "no tokenizer" in err
