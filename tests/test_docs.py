"""The documentation's site has every page, every exported name, and links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gguflow
from gguflow.engine.load.bundled import bundled_model

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(p for p in DOCS.glob("*.md") if p.name != "LOG.md")


def test_every_page_is_in_the_navigation() -> None:
    nav = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"([\w-]+\.md)$", nav, re.MULTILINE)
    assert sorted(listed) == [p.name for p in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_stay_in_the_site(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path = target.partition("#")[0]
        if path and "://" not in path:
            assert (DOCS / path).is_file() and ".." not in path, f"{page.name}: {target}"


def test_every_exported_name_has_its_reference() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    names = set(re.findall(r"^::: gguflow\.[\w.]*\.(\w+)$", text, re.MULTILINE))
    assert {*gguflow.__all__} - {"__version__"} <= names


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/python-api.md"])
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand, with the bundled model for model.gguf."""
    (tmp_path / "model.gguf").symlink_to(bundled_model())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    text = (DOCS.parent / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    mine = [b for b in blocks if "import gguflow" in b]
    assert mine
    for block in mine:
        exec(compile(block, page, "exec"), {"prompts": ["Once", "One day"]})
