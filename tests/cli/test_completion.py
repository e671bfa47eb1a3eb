"""Completions, as bash itself gives them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gguflow.cli.completion import parsers, script

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")


def complete(folder: Path, *words: str) -> set[str]:
    """What bash offers for the last word."""
    quoted = " ".join(f"'{w}'" for w in ("gguflow", *words))
    run = f"{script('bash')}\nCOMP_WORDS=({quoted})\nCOMP_CWORD={len(words)}\n_gguflow\n"
    run += 'printf "%s\\n" "${COMPREPLY[@]}"\n'
    done = subprocess.run(["bash", "-c", run], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return {*done.stdout.splitlines()}


@needs_bash
def test_commands_options_values_and_files(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "my model.gguf").touch()
    assert complete(tmp_path, "gen") == {"generate"}
    assert {"generate", "chat", "sparse", "inspect"} <= complete(tmp_path, "")
    assert complete(tmp_path, "generate", "--top-") >= {"--top-k", "--top-p", "--top-n-sigma"}
    assert complete(tmp_path, "generate", "-m", "mo") == {"model.gguf"}
    assert complete(tmp_path, "generate", "-m", "my") == {"my model.gguf"}
    assert complete(tmp_path, "completion", "") >= {"bash", "zsh", "fish"}
    assert complete(tmp_path, "he") == {"help"} and complete(tmp_path, "help", "ch") == {"chat"}
    assert complete(tmp_path, "chat", "--max-m") == {"--max-memory"}
    assert complete(tmp_path, "generate", "-m", "x", "--sparse", "p") == {"predict"}
    assert {"solve", "train"} <= complete(tmp_path, "sparse", "")
    assert complete(tmp_path, "sparse", "solve", "--de") >= {"--debug"}
    assert complete(tmp_path, "-q", "generate", "--tem") == {"--temp", "--temperature"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_there(shell: str, call) -> None:
    code, out, _ = call("completion", shell)
    assert code == 0
    for words in parsers():
        assert words[-1] in out
    assert "mirostat-ent" in out


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_in_fish(tmp_path: Path) -> None:
    (tmp_path / "c.fish").write_text(script("fish"))
    (tmp_path / "my model.gguf").touch()

    def offered(line: str) -> set[str]:
        run = f"source c.fish; complete -C {line!r}"
        done = subprocess.run(["fish", "-c", run], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return {found.partition("\t")[0] for found in done.stdout.splitlines()}

    assert offered("gguflow gen") == {"generate"}
    assert offered("gguflow generate --temp") >= {"--temp", "--temperature"}
    assert offered("gguflow generate -m my") == {"my model.gguf"}
    assert offered("gguflow sparse so") == {"solve"}
    assert offered("gguflow help ch") == {"chat"}
    assert offered("gguflow completion ") == {"bash", "zsh", "fish"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_in_zsh(tmp_path: Path) -> None:
    """Tab completes; its emulation of bash's functions is not bash."""
    pexpect = pytest.importorskip("pexpect")
    (tmp_path / "c.zsh").write_text(script("zsh"))
    (tmp_path / "my model.gguf").touch()
    p = pexpect.spawn("zsh", ["-f"], encoding="utf-8", cwd=str(tmp_path), timeout=20,
                      dimensions=(50, 200))  # fmt: skip
    p.sendline(f"autoload -U compinit; compinit -u -d {tmp_path}/dump; source c.zsh; echo rea''dy")
    p.expect_exact("ready")
    for typed, whole in (
        ("gguflow gener", "gguflow generate"), ("gguflow generate -m my", "my\\ model.gguf"),
        ("gguflow generate --sparse pre", "predict"), ("gguflow sparse so", "solve"),
        ("gguflow help gener", "help generate"),
    ):  # fmt: skip
        p.send(typed + "\t")
        p.expect_exact(whole)
        p.send("\x15")  # the line is empty again
    p.close(force=True)
