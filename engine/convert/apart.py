"""The tokenizers library in a process of its own: a tokenizer.json can make it end its process, or
take all memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .checkpoint import ConvertError

MOST_S = 120.0  # of the clock; the process has 60 s of a processor
_SCRIPT = Path(__file__).with_name("alone.py")


def tokenized(where: str, tokenizer: str, texts: Sequence[str], cuts: bool = False) -> list[Any]:
    """Of every text the ids, without special tokens, or with `cuts` where the pre-tokenizer cuts
    it. tokenizer: a tokenizer.json. Raises ConvertError, beginning with `where`, if the library
    does not take it, or does not come to an end."""
    asked = json.dumps({"tokenizer": tokenizer, "texts": texts, "cuts": cuts})
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "PYTHONIOENCODING": "utf-8"}
    try:
        done = subprocess.run(
            [sys.executable, str(_SCRIPT)], input=asked.encode(), capture_output=True,
            timeout=MOST_S, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConvertError(f"{where}: no tokens within {MOST_S:.0f} s") from None
    except OSError as e:
        raise ConvertError(f"{where}: no process for the tokenizers library: {e}") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise ConvertError(
            f"{where}: the tokenizers library ended with {done.returncode}"
        ) from None
    if "error" in answer:
        raise ConvertError(f"{where}: {answer['error']}")
    made: list[Any] = answer["made"]
    return made
