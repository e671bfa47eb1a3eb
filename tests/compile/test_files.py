"""How the sources are cut: small files, and how many of them know a thing."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import gguflow.engine.ops  # noqa: F401  (registers the ops)
from gguflow.engine.graph import all_ops
from gguflow.models.base import architectures

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("*.py", "*.cu", "*.cuh", "*.cpp", "*.h", "*.js", "*.css")
PARTS = ("engine", "kernels", "models", "cli", "server", "bench", "tests", "training")
MOST_LINES = 500


@cache
def text_of(path: Path) -> str:
    """Read once for all the words that are looked for."""
    return path.read_text(encoding="utf-8")


@cache
def sources(*parts: str) -> list[Path]:
    return [p for part in parts for kind in SOURCES for p in sorted((ROOT / part).rglob(kind))]


def files_that_say(word: str, *parts: str) -> set[str]:
    """Sources with a word in quotes."""
    said = re.compile(rf"[\"']{re.escape(word)}[\"']")
    return {p.relative_to(ROOT).as_posix() for p in sources(*parts) if said.search(text_of(p))}


def test_no_file_is_long() -> None:
    long = {
        p.name: n for p in sources(*PARTS) if (n := len(p.read_bytes().splitlines())) > MOST_LINES
    }
    assert sources(*PARTS) and not long


@pytest.mark.parametrize("name", sorted(architectures()))
def test_an_architecture_is_one_file(name: str) -> None:
    """A named shape to measure with may say its name too. Vocabularies, forms of chats and calls,
    and published checkpoints have names of their own, some of which are the same."""
    own = {f"models/{name.replace('-', '_')}.py", "models/shapes.py"}
    others = files_that_say(name, "engine", "kernels", "models") - own
    elsewhere = ("models/tokenizer/", "models/chat", "engine/calls/", "engine/convert/")
    assert {f for f in others if not f.startswith(elsewhere)} <= {
        "engine/load/powerinfer.py"  # whose files have names for two of them
    }


@pytest.mark.parametrize("name", sorted(s.name for s in all_ops()))
def test_an_op_is_known_by_few(name: str) -> None:
    """In the engine, beside its specification: rewrites, what measures kernels, what colours a
    profile, what watches the inputs of products. Models use it; kernels are found by its name.
    Checkpoints call activations by such names too."""
    known = ("engine/ops/", "engine/compile/", "engine/variants/", "engine/kernel_bench/",
             "engine/profile/", "engine/backends/cuda/rivals.py", "engine/imatrix.py",
             "engine/convert/")  # fmt: skip
    found = {f for f in files_that_say(name, "engine") if not f.startswith(known)}
    otherwise = {  # the same word for something else
        "top_k": {"engine/sampling.py", "engine/samplers/chain.py"},
        "mean": {"engine/serving/request.py"},
        "relu": {"engine/load/bundled.py"},
    }
    assert found <= otherwise.get(name, set())


def test_a_device_is_known_by_its_directory() -> None:
    found = files_that_say("cuda", "engine", "models")
    elsewhere = {f for f in found if not f.startswith("engine/backends/cuda/")}
    assert elsewhere <= {"engine/resolve.py"}  # what -ngl means without a name


def test_nothing_unpickles() -> None:
    """Files come from strangers, and a pickle is a program. Processes of one engine may send each
    other some, over what nobody else can write to."""
    between_processes = {ROOT / "engine/cluster/line.py"}
    pickles = {"pickle", "marshal", "shelve", "dill", "joblib"}
    for package in (*PARTS, "src"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text("utf-8")
            if any(word in text for word in pickles):
                found = {n for node in ast.walk(ast.parse(text)) for n in _named(node)} & pickles
                assert not found or path in between_processes, path
            assert "allow_pickle=" + "True" not in text, path


def _named(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [a.name.split(".")[0] for a in node.names]
    if isinstance(node, ast.ImportFrom):
        return [(node.module or "").split(".")[0]]
    return []
