"""-md, --lookup and their settings: the same text, and one line for what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguflow.cli.errors import BAD_ARGUMENT, BAD_FILE, OK
from gguflow.cli.main import main

TEXT = ["generate", "-p", "Once upon a time", "-n", "40", "--temp", "0", "-t", "1"]


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main([*TEXT, *args])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def plain(capsys: pytest.CaptureFixture[str]) -> str:
    code, out, err = run(capsys)
    assert code == OK and "guesses" not in err
    return out


def test_the_text_is_the_same(capsys: pytest.CaptureFixture[str], plain: str) -> None:
    for args in (["-md", "bundled", "--draft-max", "3"], ["--lookup"]):
        code, out, err = run(capsys, *args)
        assert (code, out) == (OK, plain)
        assert ("guesses by tales-1m.gguf" in err) == ("-md" in args)


def test_a_lookup_cache_is_made_and_read(
    capsys: pytest.CaptureFixture[str], plain: str, tmp_path: Path
) -> None:
    cache = tmp_path / "n-grams"
    for _ in range(2):
        code, out, _ = run(capsys, "--lookup-cache", str(cache))
        assert (code, out) == (OK, plain)
        assert cache.stat().st_size > 200


def test_chat_takes_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    talk = ["chat", "-p", "A king", "--single-turn", "-n", "12", "--temp", "0", "-t", "1",
            "--chat-template", "chatml"]  # fmt: skip
    assert main(talk) == OK
    expected = capsys.readouterr().out
    assert main([*talk, "-md", "bundled", "--lookup"]) == OK
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--draft-max", "4"], BAD_ARGUMENT, "--draft-max: only with -md or --lookup"),
        (["--lookup", "--draft-min", "20"], BAD_ARGUMENT, "--draft-min 20: expected"),
        (["--lookup", "--draft-p-min", "2"], BAD_ARGUMENT, "--draft-p-min 2.0: out of range"),
        (["-md", "nowhere.gguf"], BAD_FILE, "nowhere.gguf"),
        (["--lookup-cache", "README.md"], BAD_ARGUMENT, "--lookup-cache README.md: no file of"),
    ],
)
def test_what_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], args: list[str], code: int, message: str
) -> None:
    found, out, err = run(capsys, *args)
    assert (found, out) == (code, "")
    last = err.strip().splitlines()[-1]
    assert last.startswith("gguflow: error: ") and message in last


def test_a_draft_with_another_vocabulary(
    capsys: pytest.CaptureFixture[str], shared_data: Path
) -> None:
    code, _, err = run(capsys, "-md", str(shared_data / "stories260K.gguf"))
    assert code == BAD_ARGUMENT
    assert "512 tokens" in err and "a draft needs the same vocabulary" in err.splitlines()[-1]
