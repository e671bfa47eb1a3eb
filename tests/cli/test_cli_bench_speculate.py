"""`gguflow bench --speculate`: gains at a planted acceptance."""

from __future__ import annotations

import json

import pytest

from gguflow.cli import bench_speculate
from gguflow.cli.errors import BAD_ARGUMENT, CHECK_FAILED, OK
from gguflow.cli.main import main

SMALL = ["bench", "-npp", "8", "-ntg", "24", "-t", "1"]


@pytest.mark.parametrize("draft", [[], ["-md", "bundled", "--draft-max", "3"]])
def test_results(capsys: pytest.CaptureFixture[str], draft: list[str]) -> None:
    args = [*SMALL, *draft, "--speculate", "0,1", "--sequences", "1,3", "-o", "jsonl"]
    assert main(args) == OK
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["pl"], r["planted"]) for r in results] == [(1, 0.0), (1, 1.0), (3, 0.0), (3, 1.0)]
    for r in results:
        assert r["acceptance"] == (r["planted"] if r["drafted"] else 0.0)
        assert r["drafted"] == r["accepted"] + r["wasted"]
        assert r["gain"] == pytest.approx(r["guessed"] / r["plain"])
        assert r["draft"].endswith("tales-1m.gguf") == bool(draft)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--speculate", "0.5"]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("llama 8.1M Q8_0, guesses by lookup, at most 16")
    assert "planted" in lines[2] and len(lines) == 5


def test_another_text_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, n = bench_speculate.run_once, 0

    def other(*args):
        nonlocal n
        n += 1
        texts, seconds = real(*args)
        return (texts if n == 1 else [[0]]), seconds

    monkeypatch.setattr(bench_speculate, "run_once", other)
    assert main([*SMALL, "--speculate", "0.5"]) == CHECK_FAILED
    assert "not the plain one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-md", "bundled"], "-md: only with --speculate"),
        (["--speculate", "1.5"], "1.5: expected 0 to 1"),
        (["--speculate", "0.5", "-ntg", "1"], "-ntg: --speculate measures"),
        (["--speculate", "0.5", "-md", "bundled", "--random-draft", "x"], "exclude each other"),
    ],
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    assert main(["bench", *args]) == BAD_ARGUMENT
    assert message in capsys.readouterr().err
