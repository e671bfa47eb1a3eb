"""What users write first runs as it stands, and passes a strict type checker."""

from __future__ import annotations

import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import gguflow

SNIPPETS = sorted((Path(__file__).parent / "snippets").glob("*.py"))


def test_there_are_enough() -> None:
    assert len(SNIPPETS) >= 25


@pytest.mark.parametrize("path", SNIPPETS, ids=lambda p: p.stem)
def test_it_runs(path: Path) -> None:
    runpy.run_path(str(path), run_name="__main__")


def _in_one_folder(folder: Path) -> Path:
    """The package as it is imported, where a checkout's parts may lie apart."""
    package = folder / "gguflow"
    package.mkdir(parents=True)
    for file in Path(gguflow.__file__).parent.iterdir():
        if file.suffix in (".py", ".pyi", ".typed"):
            (package / file.name).symlink_to(file)
    for name in ("engine", "kernels", "models", "cli", "server"):
        file = import_module(f"gguflow.{name}").__file__
        assert file
        (package / name).symlink_to(Path(file).parent)
    return folder


def test_they_type_check(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    config = tmp_path / "mypy.ini"
    # The package's own modules are checked as the project asks, not strictly.
    config.write_text(
        f"[mypy]\nstrict = True\nmypy_path = {_in_one_folder(tmp_path / 'types')}\n"
        "explicit_package_bases = True\nignore_missing_imports = True\n"
        "[mypy-gguflow.*]\nignore_errors = True\n"
    )
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import gguflow\n"
        "model = gguflow.Model.load(n_context=5)\n"
        'list(model.generate("x", tempreature=1.0))\n'
        "list(model.generate(5))\n"
        'list(model.chat("hello"))\n'
        "gguflow.SamplerSettings(top_k=0.5)\n"
        'list(model.generate("x", json_schema=5))\n'
        'list(model.chat([], tool_choice="always"))\n'
    )
    command = [sys.executable, "-m", "mypy", "--scripts-are-modules", "--config-file", str(config),
               "--cache-dir", str(tmp_path / "cache")]  # fmt: skip

    def check(files: list[Path]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *map(str, files)], capture_output=True, text=True)

    snippets = check(SNIPPETS)
    assert snippets.returncode == 0, snippets.stdout
    found = check([wrong]).stdout
    lines = {int(x.split(":")[1]) for x in found.splitlines() if ": error:" in x}
    assert lines == {2, 3, 4, 5, 6, 7, 8}, found
