"""Names that stand for no regular file: nothing is waited for without end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gguflow.cli.main import main
from gguflow.engine import opened
from gguflow.engine.files import read_file
from gguflow.engine.profile import jsonl

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(opened, "WRITER_S", 0.05)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["tokenize", "-f", "PIPE"], 2),
        (["profile", "--from", "PIPE"], 3),
        (["quantize", "--imatrix", "PIPE", "--dry-run", "BUNDLED", "q8_0"], 3),
        (["generate", "-p", "a", "-n", "1", "--log-file", "PIPE"], 2),
    ],
)
def test_pipes_without_another_end(
    pipe: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int
) -> None:
    from gguflow.engine.load.bundled import bundled_model

    names = {"PIPE": str(pipe), "BUNDLED": str(bundled_model())}
    assert main([names.get(w, w) for w in words]) == code
    assert str(pipe) in capsys.readouterr().err


def test_a_slow_writer_is_waited_for(pipe: Path) -> None:
    program = "import sys,time; f=open(sys.argv[1],'w'); time.sleep(.3); f.write('late'); f.close()"
    with subprocess.Popen([sys.executable, "-c", program, str(pipe)]):
        opened.WRITER_S = 5.0
        assert read_file(pipe) == b"late"


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MOST_LINE", 1 << 10)
    (tmp_path / "x.jsonl").write_bytes(bytes(1 << 12))
    with pytest.raises(jsonl.ProfileFileError, match="a line of more than"):
        jsonl.load_jsonl(tmp_path / "x.jsonl")
