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
    return {*done.stdout.split()}


@needs_bash
def test_commands_options_values_and_files(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    assert complete(tmp_path, "gen") == {"generate"}
    assert {"generate", "chat", "sparse", "inspect"} <= complete(tmp_path, "")
    assert complete(tmp_path, "generate", "--top-") >= {"--top-k", "--top-p", "--top-n-sigma"}
    assert complete(tmp_path, "generate", "-m", "mo") == {"model.gguf"}
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
def test_fish_reads_it(tmp_path: Path) -> None:
    (tmp_path / "c.fish").write_text(script("fish"))
    done = subprocess.run(["fish", "-n", str(tmp_path / "c.fish")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
