"""Which of the known pre-tokenizers a tokenizer.json has: the one that cuts a probe as it does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .apart import tokenized
from .checkpoint import ConvertError

# Scripts, cases, numbers of many lengths, contractions, marks, white space of all kinds.
PROBE = (
    "I'll DON'T we've it's You'RE HelloWorld fooBar XMLHttp 1 12 123 1234 12345 1234567 3.14159 "
    "x1y22 \u0967\u0968\u0969 \u00bd na\u00efve e\u0301te\u0301 \u00c5ngstr\u00f6m \u0394\u03bb "
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 "
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a \u4f60\u597d\u4e16\u754c42"
    "\u3053\u3093\u306b\u3061\u306f\u30ab\u30bf \ud55c\uad6d\uc5b4 \U0001f999\U0001f600 a_b-c "
    "(x)[y]{z} <tag/> http://a.b/c?d=e&f ==  !== ... '''\"\"\" #$%^&* `code` \u2026\u201cq\u201d"
    "\u3002\uff01 end.\n\nNew\n \n\t\ttabs  two   three    four     five\r\nline /path/to\n/x "
    "a\u00a0b 'tis 'S a'tis l'Amour O'REILLY'S \n\n\n   lead\n   \n"
)


def pre_tokenizer_of(path: Path, values: Mapping[str, Any]) -> str:
    """The name of the known rules that are those of a tokenizer.json. Raises ConvertError."""
    from gguflow.models.tokenizer.pretokenizers import PRE_TOKENIZERS

    alone: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": values.get("pre_tokenizer"), "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    }  # fmt: skip
    (words,) = tokenized(f"{path}: pre_tokenizer", json.dumps(alone), [PROBE], cuts=True)
    merges = bool(values.get("model", {}).get("ignore_merges"))
    same = [
        name for name, rules in PRE_TOKENIZERS.items() if not rules.raw and _cuts(rules) == words
    ]
    same.sort(key=lambda name: PRE_TOKENIZERS[name].ignore_merges != merges)
    if not same:
        raise ConvertError(
            f"{path}: its pre-tokenizer is none of those known; give the name of one"
        )
    return same[0]


def _cuts(rules: Any) -> list[list[int]]:
    return [list(at) for _, at in rules.splitter().pre_tokenize_str(PROBE)]
