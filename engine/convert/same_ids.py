"""Whether keys of a file cut texts into the tokens that tokenizer.json cuts them into."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gguflow.engine.gguf import GgufError
from gguflow.models.tokenizer import Tokenizer

from .apart import tokenized
from .checkpoint import ConvertError

# Spaces in all places, scripts, cases, numbers, forms that normalization changes.
PROBES = (
    "", " ", "a", " a", "a ", "  a  b   c ", "Hello, World! It's 3.14 o'clock (don't panic).",
    "the quick brown fox jumps over the lazy dog", "THE QUICK Brown FOX", "unbelievably 1234567 8",
    "line\nbreak\ttab\n\nend\n", "\u0391\u03b2\u03b3 \u041f\u0440\u0438\u0432\u0435\u0442 "
    "\u4f60\u597d\u4e16\u754c \u3053\u3093\u306b\u3061\u306f \u30ab\u30bf \ud55c\uad6d\uc5b4",
    "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m \uff21\uff22\uff23 \u00bd \u2460 \ufb01n",
    "a_b-c [x] {y} <tag/> http://a.b/c?d=e&f == != '''x''' #$%^&* \u201cq\u201d \u2026 \U0001f600",
    "internationalization antidisestablishmentarianism",
)  # fmt: skip


def first_that_agrees(
    path: Path, values: Mapping[str, Any], several: Iterable[dict[str, Any]]
) -> dict[str, Any] | None:
    """The first of several keys with which every probe has the tokens that tokenizer.json gives,
    without those around it. Raises ConvertError for a tokenizer.json that the tokenizers library
    does not take and for keys that are no vocabulary."""
    plain = json.dumps({**values, "truncation": None, "padding": None})
    wanted = tokenized(str(path), plain, PROBES)
    for keys in several:
        try:
            ours = Tokenizer.from_metadata(keys, str(path))
        except GgufError as e:
            raise ConvertError(str(e)) from None
        if [ours.encode(text, add_special=False) for text in PROBES] == wanted:
            return keys
    return None
