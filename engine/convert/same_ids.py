"""Whether keys of a file cut texts into the tokens that tokenizer.json cuts them into."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguflow.engine.gguf import GgufError
from gguflow.models.tokenizer import Tokenizer

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


def agrees(path: Path, values: Mapping[str, Any], keys: Mapping[str, Any]) -> bool:
    """Of every probe, without the tokens around it. Raises ConvertError for a tokenizer.json that
    the tokenizers library does not take and for keys that are no vocabulary."""
    import tokenizers

    plain = json.dumps({**values, "truncation": None, "padding": None})
    try:
        theirs = tokenizers.Tokenizer.from_str(plain)
        wanted = [theirs.encode(text, add_special_tokens=False).ids for text in PROBES]
    except BaseException as e:  # the library raises bare Exception; a panic of Rust is none
        if isinstance(e, Exception) or type(e).__name__ == "PanicException":
            raise ConvertError(f"{path}: {e}") from None
        raise
    try:
        ours = Tokenizer.from_metadata(keys, str(path))
    except GgufError as e:
        raise ConvertError(str(e)) from None
    return all(
        ours.encode(text, add_special=False) == ids
        for text, ids in zip(PROBES, wanted, strict=True)
    )
