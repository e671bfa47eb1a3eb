"""How processes share the GPU tests, and what is said of them in the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import gpu_coverage
import pytest
from gpu_coverage import Ran

TESTS = Path(gpu_coverage.__file__).parent
CONFTEST = """
import builtins, os
import gpu_queue
def watch(record): builtins.launch = record.saw
gpu_queue.watch_launches, gpu_queue.open_device = watch, lambda: None
def pytest_configure(config): gpu_queue.join(config, os.environ["QUEUE"])
"""
MANY = """
import pytest, time
@pytest.mark.parametrize("i", range(40))
def test_a(i): time.sleep(0.03)
"""
LAUNCHING = """
import pytest
class K: source, entry, options = "a.cu", "a<1>", ("-x",)
def test_a(): launch(K); launch(K)
def test_b(): launch(K); pytest.skip("no")
def test_c(): assert False
"""


def line(test: str, outcome: str = "passed", seconds: float = 1.0, *kernels: str) -> str:
    made = {"test": test, "outcome": outcome, "seconds": seconds, "kernels": kernels}
    return json.dumps(made) + "\n"


def start(folder: Path, worker: str, **env: str) -> subprocess.Popen[bytes]:
    queue = {"QUEUE": str(folder / "queue"), "WORKER": worker, "PYTHONPATH": str(TESTS), **env}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.Popen(command, env={**os.environ, **queue}, stdout=subprocess.PIPE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "queue").mkdir()
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def records(folder: Path) -> list[dict[str, object]]:
    files = sorted((folder / "queue").glob("*.jsonl"))
    return [json.loads(x) for path in files for x in path.read_text().splitlines()]


def test_every_test_runs_once_in_one_of_the_processes(folder: Path) -> None:
    (folder / "test_many.py").write_text(MANY)
    (folder / "queue" / "done").write_text("test_many.py::test_a[7]\n")
    (folder / "queue" / "order").write_text("test_many.py::test_a[33]\n")
    both = [start(folder, w) for w in ("0.0", "1.0")]
    assert [p.wait(60) for p in both] == [0, 0]
    found = [str(r["test"]) for r in records(folder)]
    assert len(found) == len(set(found)) == 39 and "test_many.py::test_a[7]" not in found
    firsts = (p.read_text().partition("\n")[0] for p in (folder / "queue").glob("*.jsonl"))
    assert any("test_many.py::test_a[33]" in first for first in firsts)
    assert (folder / "queue" / "over.0.0").is_file() and (folder / "queue" / "over.1.0").is_file()


def test_a_test_that_takes_too_long_ends_its_process_and_is_named(folder: Path) -> None:
    (folder / "test_long.py").write_text(
        "import time\ndef test_a(): pass\ndef test_b(): time.sleep(60)\ndef test_c(): pass\n"
    )
    began = time.monotonic()
    assert start(folder, "0.0", QUEUE_TEST="1").wait(60) == 86
    assert time.monotonic() - began < 30
    outcomes = {str(r["test"]).split("::")[1]: r["outcome"] for r in records(folder)}
    assert outcomes == {"test_a": "passed", "test_b": "unfinished"}
    assert not (folder / "queue" / "over.0.0").exists()  # so that another process follows


def test_no_test_begins_when_the_time_is_over(folder: Path) -> None:
    (folder / "test_a.py").write_text("def test_a(): pass\n")
    assert start(folder, "0.0", QUEUE_UNTIL=str(time.time() - 1)).wait(60) == 0
    assert records(folder) == [] and (folder / "queue" / "over.0.0").is_file()


def test_what_was_launched_belongs_to_its_test(folder: Path) -> None:
    (folder / "test_a.py").write_text(LAUNCHING)
    start(folder, "0.0").wait(60)
    found = {str(r["test"]).split("::")[1]: (r["outcome"], r["kernels"]) for r in records(folder)}
    kernel = ["a.cu a<1> -x"]
    assert found == {"test_a": ("passed", kernel), "test_b": ("skipped", kernel),
                     "test_c": ("failed", [])}  # fmt: skip


def test_only_what_a_tool_could_tell_counts(tmp_path: Path) -> None:
    (tmp_path / "0.0.jsonl").write_text(line("a", "passed", 1, "k1") + line("b", "failed", 1, "k2"))
    (tmp_path / "0.0.log").write_text("..========= ERROR SUMMARY: 0 errors\n")
    (tmp_path / "1.0.jsonl").write_text(line("c", "passed", 1, "k3"))
    (tmp_path / "1.0.log").write_text("..")  # killed
    found = gpu_coverage.ran(tmp_path, has_tool=True)
    assert {t: r.outcome for t, r in found.items()} == {"a": "passed", "b": "failed", "c": "untold"}
    assert gpu_coverage.launched(found) == {"k1"}
    assert gpu_coverage.launched(gpu_coverage.ran(tmp_path, has_tool=False)) == {"k1", "k3"}


def test_a_kernel_that_only_the_plain_run_launched_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain.json"
    gpu_coverage.write(plain, {"a": Ran("passed", 1, ("k1",)), "b": Ran("passed", 2, ("k1", "k2"))})
    (tmp_path / "0.0.jsonl").write_text(line("a", "passed", 1, "k1"))
    (tmp_path / "0.0.log").write_text("========= ERROR SUMMARY: 0 errors\n")
    args = ["report", str(tmp_path), "--tool", "--plain", str(plain)]
    assert gpu_coverage.main(args) == 1
    said = capsys.readouterr().out
    assert "plainly: 2, of these under the tool: 1" in said and "not launched: k2" in said
    (tmp_path / "1.0.jsonl").write_text(line("b", "passed", 1, "k1", "k2"))
    (tmp_path / "1.0.log").write_text("========= ERROR SUMMARY: 0 errors\n")
    assert gpu_coverage.main(args) == 0
    assert "not yet under the tool: 0" in capsys.readouterr().out


def test_a_run_goes_on_with_one_before(tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    gpu_coverage.write(before, {"a": Ran("passed", 1, ("k1",)), "b": Ran("unfinished", 9, ())})
    (tmp_path / "0.0.jsonl").write_text(line("b", "passed", 1, "k2"))
    (tmp_path / "0.0.log").write_text("========= ERROR SUMMARY: 0 errors\n")
    assert gpu_coverage.main(["report", str(tmp_path), "--tool", "--before", str(before)]) == 0
    found = gpu_coverage.read(tmp_path / "covered.json")
    assert gpu_coverage.launched(found) == {"k1", "k2"}


def test_few_tests_that_launch_everything_come_first() -> None:
    tests = {
        "slow": Ran("passed", 50, ("k1", "k2", "k3")),
        "quick": Ran("passed", 0.1, ("k1", "k2")),
        "other": Ran("passed", 0.2, ("k3",)),
        "more": Ran("passed", 0.0, ("k1",)),
        "none": Ran("skipped", 0.0, ()),
    }
    assert gpu_coverage.order(tests, {}) == ["quick", "other", "more", "none", "slow"]
    before = {"x": Ran("passed", 1, ("k1", "k2"))}
    assert gpu_coverage.order(tests, before)[0] == "other"
