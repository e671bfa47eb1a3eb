"""--log-file, -lv and --log-disable: what is told, and where it goes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gguflow.cli.log_options import end_log, log_to

WORDS = ("-n", "4", "-p", "Hello", "-t", "1", "-s", "1")


def test_a_log_has_what_standard_error_has(call, tiny_model: str, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("of an earlier run\n")
    words = ("generate", "-m", tiny_model, *WORDS, "--numa", "isolate")
    code, out, err = call(*words, "--log-file", str(log))
    assert (code, log.read_text()) == (0, err)
    assert err.startswith("note: --numa changes nothing") and "eval time" in err
    assert call(*words)[1] == out
    code, _, err = call(*words, "--log-file", str(log), "-c", "3")
    assert code == 4 and log.read_text() == err and err.count("gguflow: error: ") == 1


def test_standard_error_is_as_it_was_afterwards(call, tiny_model: str, tmp_path: Path) -> None:
    before = sys.stderr
    call("generate", "-m", tiny_model, *WORDS, "--log-file", str(tmp_path / "a.log"))
    assert sys.stderr is before


def test_bars_are_for_terminals_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_to(str(tmp_path / "a.log"))
    try:
        print("\x1b[2Kloading 3%", file=sys.stderr)
        print("loaded", file=sys.stderr)
    finally:
        end_log()
    assert (tmp_path / "a.log").read_text().strip() == "loaded"
    assert "3%" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_ends_the_log_and_not_the_work(call, tiny_model: str) -> None:
    words = ("generate", "-m", tiny_model, *WORDS, "--no-perf")
    assert call(*words, "--log-file", "/dev/full") == call(*words)


def test_levels(call, tiny_model: str) -> None:
    words = ("generate", "-m", tiny_model, *WORDS, "--no-perf")
    _, _, plain = call(*words, "-lv", "3")
    assert plain == call(*words)[2]
    assert call(*words, "-lv", "5")[2] == call(*words, "-v")[2] != plain
    for quiet in (("-lv", "1"), ("--log-disable",), ("--log-verbosity", "0")):
        assert call(*words, *quiet)[2] == ""
