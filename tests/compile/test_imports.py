"""Imports go one way; a layer that reaches up is a design error."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From the ground up: what a directory or module of gguflow may import of those before it. Itself is
# always allowed; a name stands for all that is in it.
GROUND = ("engine.graph", "engine.quants", "engine.ops", "engine.gguf", "engine.env",
          "engine.harmless", "engine.mapped", "engine.room", "engine.files", "engine.limits",
          "engine.plan_key", "engine.prompt", "engine.adapters", "engine.found", "engine.threads",
          "engine.pool", "engine.opened")  # fmt: skip
BASE = (*GROUND, "models", "engine.compile", "engine.backends.base", "engine.options",
        "engine.sampling", "engine.profile")  # fmt: skip
LOADED = (*BASE, "engine.load", "engine.requantize", "engine.runtime", "engine.planning")
ENGINE = (*LOADED, "engine.variants", "engine.resolve", "engine.session", "engine.model",
          "engine.ahead", "engine.taps", "engine.evaluate")  # fmt: skip
ALLOWED: dict[str, tuple[str, ...]] = {
    "engine/__init__.py": (),
    "engine/graph": (),
    "engine/quants": ("engine.graph", "engine.found"),
    "engine/ops": ("engine.graph", "engine.quants", "engine.plan_key", "engine.found"),
    "engine/gguf": (
        "engine.graph",
        "engine.quants",
        "engine.files",
        "engine.harmless",
        "engine.mapped",
        "engine.opened",
        "engine.pool",
    ),
    "engine/dataclass.py": (),
    "engine/mapped.py": ("engine.found",),
    "engine/room.py": (),
    "engine/harmless.py": (),
    "engine/env.py": (),
    "engine/opened.py": (),
    "engine/files.py": ("engine.opened",),
    "engine/locked.py": (),
    "engine/limits.py": (),
    "engine/threads.py": (),
    "engine/pool.py": ("engine.threads",),
    "engine/interrupt.py": ("engine.threads",),
    "engine/hub.py": ("engine.env", "engine.files"),
    "engine/url.py": ("engine.env", "engine.hub"),
    "engine/plan_key.py": (),
    "engine/prompt.py": (),
    "engine/adapters.py": (),
    "engine/found.py": (),
    "kernels": ("engine.graph", "engine.files", "engine.found", "engine.plan_key"),
    "engine/compile": ("engine.graph",),
    "engine/profile": (
        "engine.graph",
        "engine.env",
        "engine.files",
        "engine.harmless",
        "engine.opened",
    ),
    "engine/backends": (
        "engine.found",
        "engine.graph",
        "engine.interrupt",
        "engine.limits",
        "engine.ops",
        "engine.quants",
        "engine.compile",
        "engine.env",
        "engine.plan_key",
        "engine.pool",
        "engine.threads",
        "kernels",
    ),
    "models": (
        "engine.found",
        "engine.graph",
        "engine.harmless",
        "engine.ops",
        "engine.quants",
        "engine.gguf",
        "engine.plan_key",
        "engine.room",
    ),
    "engine/options.py": GROUND,
    "engine/sampling.py": GROUND,
    "engine/samplers": (*GROUND, "engine.sampling"),
    "engine/text.py": (),
    "engine/message.py": (),
    "engine/constraints": ("models",),
    "engine/calls": ("engine.constraints", "models"),
    "engine/piece.py": ("engine.message", "engine.serving", "engine.text"),
    "engine/load": (*BASE, "engine.backends.forms", "engine.locked"),
    "engine/requantize.py": (*BASE, "engine.load"),
    "engine/imatrix.py": BASE,
    "engine/quantize.py": (*BASE, "engine.load", "engine.requantize", "engine.imatrix"),
    "engine/runtime": (
        "engine.plan_key",
        "engine.graph",
        "engine.compile",
        "engine.backends",
        "engine.profile",
        "engine.env",
    ),
    "engine/serving": (*LOADED, "engine.ahead", "engine.interrupt", "engine.samplers"),
    "engine/ahead.py": BASE,
    "engine/planning.py": (*BASE, "engine.load", "engine.serving.buckets", "engine.serving.kv"),
    "engine/devices.py": ("engine.backends.base", "engine.limits"),
    "engine/taps.py": BASE,
    "engine/variants": (*LOADED, "engine.taps", "engine.imatrix"),
    "engine/variants/relu/tools": ENGINE,
    "engine/resolve.py": (*LOADED, "engine.devices", "engine.variants.base"),
    "engine/session.py": (
        *LOADED,
        "engine.ahead",
        "engine.interrupt",
        "engine.piece",
        "engine.serving",
        "engine.session_file",
    ),
    "engine/session_file.py": (*BASE, "engine.serving"),
    "engine/answer.py": ("engine.message", "engine.piece", "models"),
    "engine/generate.py": (
        *BASE,
        "engine.constraints",
        "engine.piece",
        "engine.serving",
        "engine.session",
        "engine.text",
    ),
    "engine/chat.py": (
        "engine.answer",
        "engine.calls",
        "engine.constraints",
        "engine.generate",
        "engine.sampling",
        "models",
    ),
    "engine/streams.py": (
        "engine.chat",
        "engine.generate",
        "engine.piece",
        "engine.pool",
        "engine.serving",
        "engine.threads",
    ),
    "engine/described.py": (*LOADED, "engine.resolve"),
    "engine/sized.py": (*LOADED, "engine.described", "engine.serving"),
    "engine/model.py": (
        *LOADED,
        "engine.chat",
        "engine.constraints",
        "engine.devices",
        "engine.generate",
        "engine.piece",
        "engine.resolve",
        "engine.session",
        "engine.serving",
        "engine.sized",
        "engine.streams",
    ),
    "engine/evaluate.py": ENGINE,
    "engine/verify": (*ENGINE, "engine.backends.host"),
    "engine/cluster": (*ENGINE, "engine.backends.host", "engine.devices", "engine.serving"),
    "engine/kernel_bench": LOADED,
    "engine/scaling": (*ENGINE, "engine.devices"),
    "engine/convert": (
        "engine.graph",
        "engine.quants",
        "engine.files",
        "engine.gguf",
        "engine.mapped",
        "engine.opened",
        "models",
    ),
    "server": ("engine", "models"),
    "cli": ("engine", "models", "server"),
    "src/gguflow": ("engine", "models", "cli"),
}
NUMPY_ONLY = {"engine/graph"}
EVERYWHERE = ("gguflow", "gguflow.engine", "gguflow.engine.dataclass")


def package(path: Path) -> list[str]:
    """The package that a file's relative imports start from."""
    parts = path.relative_to(ROOT).parts[:-1]
    return ["gguflow", *(parts[2:] if parts[:1] == ("src",) else parts)]


@cache
def imports(path: Path, typing_only: bool = True) -> list[str]:
    """Absolute names of everything a file imports, within functions too. typing_only: also of what
    it imports for the type checker alone."""
    found = []
    for node in _statements(ast.parse(path.read_text(encoding="utf-8")), typing_only):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            here = package(path)
            base = here[: len(here) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{name}.{a.name}" if is_module(f"{name}.{a.name}") else name
                      for a in node.names]  # fmt: skip
    return found


def _statements(tree: ast.AST, typing_only: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        checks = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if typing_only or not checks:
            yield node
            yield from _statements(node, typing_only)


@cache
def file_of(name: str) -> Path | None:
    """The source of a module or package of gguflow."""
    top, *parts = name.split(".")
    if top != "gguflow":
        return None
    for folder in (ROOT, ROOT / "src/gguflow"):
        for path in (folder.joinpath(*parts).with_suffix(".py") if parts else folder,
                     folder.joinpath(*parts, "__init__.py")):  # fmt: skip
            if path.is_file():
                return path
    return None


def is_module(name: str) -> bool:
    return file_of(name) is not None


@cache
def sources() -> list[Path]:
    """Every module of gguflow."""
    folders = ("engine", "models", "kernels", "server", "cli", "src/gguflow")
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


@cache
def layer_of(path: Path) -> str:
    """The entry of ALLOWED that a file falls under, the closest one."""
    name = path.relative_to(ROOT).as_posix()
    found = [layer for layer in ALLOWED if name == layer or name.startswith(f"{layer}/")]
    assert found, f"{name}: nothing says what it may import"
    return max(found, key=len)


@pytest.mark.parametrize("layer", ALLOWED)
def test_layer_imports_only_below_itself(layer: str) -> None:
    own = "gguflow." + layer.removesuffix(".py").removeprefix("src/gguflow").replace("/", ".")
    allowed = [own.rstrip("."), *(f"gguflow.{a}" for a in ALLOWED[layer])]
    files = [p for p in sources() if layer_of(p) == layer]
    assert files, f"{layer} has no sources"
    for path in files:
        for name in imports(path, typing_only=False):
            if name.split(".")[0] == "gguflow" and name not in EVERYWHERE:
                ok = any(name == a or name.startswith(a + ".") for a in allowed)
                assert ok, f"{path.relative_to(ROOT)} imports {name}"


def test_every_source_is_in_a_layer() -> None:
    """A new file of engine/ says where it stands, and none says so that is gone."""
    assert {layer_of(p) for p in sources()} == set(ALLOWED)


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Not at the top, not within functions either: a late import may not hide a circle."""
    edges = {p: {f for n in imports(p, typing_only=False) if (f := file_of(n)) and f != p}
             for p in sources()}  # fmt: skip
    done: set[Path] = set()

    def visit(path: Path, above: list[Path]) -> None:
        if path in above:
            circle = [*above[above.index(path) :], path]
            names = " -> ".join(str(p.relative_to(ROOT)) for p in circle)
            raise AssertionError(f"a circle of imports: {names}")
        if path not in done:
            for other in sorted(edges.get(path, ())):
                visit(other, [*above, path])
            done.add(path)

    for path in edges:
        visit(path, [])


@pytest.mark.parametrize("layer", NUMPY_ONLY)
def test_graph_layer_needs_numpy_alone(layer: str) -> None:
    known = set(sys.stdlib_module_names) | {"numpy", "gguflow"}
    for path in (ROOT / layer).rglob("*.py"):
        for name in imports(path):
            assert name.split(".")[0] in known, f"{path.relative_to(ROOT)} imports {name}"


def test_backends_are_not_imported_by_name() -> None:
    backends = [p.stem for p in (ROOT / "engine/backends").iterdir()
                if p.stem not in ("__init__", "__pycache__", "base", "forms", "host")]  # fmt: skip
    for path in [*(ROOT / "engine").rglob("*.py"), *(ROOT / "models").rglob("*.py")]:
        if (ROOT / "engine/backends") in path.parents:
            continue
        for name in imports(path):
            for b in backends:
                assert not name.startswith(f"gguflow.engine.backends.{b}"), f"{path} imports {name}"


def test_variants_are_named_by_their_own_directory_alone() -> None:
    """Plugged in: neither models nor the engine beside them know which there are."""
    below = [*(ROOT / "engine").rglob("*.py"), *(ROOT / "models").rglob("*.py")]
    for path in below:
        if (ROOT / "engine/variants") in path.parents:
            continue
        named = [n for n in imports(path) if n.startswith("gguflow.engine.variants.")]
        assert set(named) <= {"gguflow.engine.variants.base"}, f"{path} imports {named}"
