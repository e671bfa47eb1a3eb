"""The engine names fields, the command line flags."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from gguflow.cli import generate, perplexity
from gguflow.cli.errors import FLAGS, message
from gguflow.cli.parser import Parser
from gguflow.engine.options import OptionError, Options
from gguflow.engine.sampling import SamplerError, SamplerSettings

ROOT = Path(__file__).parents[2]


def test_every_flag_is_one_and_every_field_too() -> None:
    known = set()
    for module in (generate, perplexity):
        parser = Parser("gguflow", "")
        module.add_arguments(parser)
        known |= set(parser._option_string_actions)
    assert set(FLAGS.values()) <= known
    assert FLAGS.keys() <= {f.name for t in (Options, SamplerSettings) for f in fields(t)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("`sparse_threshold` is for", "--sparse-threshold is for"),
        ("they need `sparse=predict` or exact", "they need --sparse predict or exact"),
        ("use `predictor=FILE` or", "use --predictor FILE or"),
        ("run `gguflow sparse stats` first", "run `gguflow sparse stats` first"),
        ("`split`s and `splits`", "--splits and `splits`"),
    ],
)
def test_fields_become_flags(text: str, said: str) -> None:
    assert message(OptionError(text)) == said


def test_what_the_library_says_of_a_setting() -> None:
    with pytest.raises(SamplerError, match="^`top_p` 2.0: out of range") as e:
        SamplerSettings(top_p=2.0)
    assert message(e.value).startswith("--top-p 2.0: out of range")


def strings(path: Path) -> Iterator[str]:
    """The text of a module but for docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_the_library_names_no_flag() -> None:
    flag = re.compile(r"(?<![\w-])(--[a-z][a-z-]+|-(c|t|b|tb|ub|ngl|ot))(?![\w-])")
    for folder in ("engine", "models"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name == "__main__.py":  # a command of its own
                continue
            for text in strings(path):
                assert not flag.search(text), f"{path.relative_to(ROOT)}: {text!r}"
