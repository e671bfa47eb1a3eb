"""Imports go one way; a layer that reaches up is a design error."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# package directory -> gguflow packages it may import (itself is always allowed)
ALLOWED = {
    "engine/graph": set(),
    "engine/quants": {"engine.graph"},
    "engine/ops": {"engine.graph", "engine.quants", "engine.plan_key"},
    "engine/gguf": {"engine.graph", "engine.quants"},
    "engine/compile": {"engine.graph"},
    "engine/profile": {"engine.graph", "engine.env"},
    "engine/backends": {
        "engine.graph",
        "engine.ops",
        "engine.quants",
        "engine.compile",
        "engine.env",
        "kernels",
    },
    "engine/runtime": {
        "engine.graph",
        "engine.compile",
        "engine.backends",
        "engine.profile",
        "engine.env",
    },
    "models": {
        "engine.graph",
        "engine.ops",
        "engine.quants",
        "engine.gguf",
        "engine.plan_key",
    },
    "kernels": {"engine.graph"},
}
NUMPY_ONLY = {"engine/graph"}


def imports(path: Path) -> list[str]:
    """Absolute names of everything a file imports."""
    package = ["gguflow", *path.relative_to(ROOT).parts[:-1]]
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            bare = name in ("gguflow", "gguflow.engine")  # the names are modules then
            found += [f"{name}.{a.name}" for a in node.names] if bare else [name]
    return found


@pytest.mark.parametrize("layer", ALLOWED)
def test_layer_imports_only_below_itself(layer: str) -> None:
    own = "gguflow." + layer.replace("/", ".")
    allowed = [own, *(f"gguflow.{a}" for a in ALLOWED[layer])]
    files = list((ROOT / layer).rglob("*.py"))
    assert files, f"{layer} has no sources"
    for path in files:
        for name in imports(path):
            if name.split(".")[0] == "gguflow":
                ok = any(name == a or name.startswith(a + ".") for a in allowed)
                assert ok, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("layer", NUMPY_ONLY)
def test_graph_layer_needs_numpy_alone(layer: str) -> None:
    import sys

    known = set(sys.stdlib_module_names) | {"numpy", "gguflow"}
    for path in (ROOT / layer).rglob("*.py"):
        for name in imports(path):
            assert name.split(".")[0] in known, f"{path.relative_to(ROOT)} imports {name}"


def test_backends_are_not_imported_by_name() -> None:
    backends = [p.stem for p in (ROOT / "engine/backends").iterdir()
                if p.stem not in ("__init__", "__pycache__", "base", "host")]  # fmt: skip
    for path in [*(ROOT / "engine").rglob("*.py"), *(ROOT / "models").rglob("*.py")]:
        if (ROOT / "engine/backends") in path.parents:
            continue
        for name in imports(path):
            for b in backends:
                assert not name.startswith(f"gguflow.engine.backends.{b}"), f"{path} imports {name}"
