"""Converters of values that several groups of options share."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

from gguflow.engine.limits import MAX_TOKENS


def whole(least: int, most: int = MAX_TOKENS) -> Callable[[str], int]:
    """Converter for a whole number from `least` to `most`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise ArgumentTypeError(f"{text}: expected a whole number from {least} to {most}")
        return value

    return convert


def real(text: str) -> float:
    """Converter for a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ArgumentTypeError(f"{text}: expected a finite number")
    return value


def some_text(text: str) -> str:
    """Converter for a text of at least one character."""
    if not text:
        raise ArgumentTypeError("expected a text, not none")
    return text


def names(text: str) -> tuple[str, ...]:
    """Converter for names separated by commas."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise ArgumentTypeError(f"{text}: expected names separated by commas")
    return found


def ratios(text: str) -> tuple[float, ...]:
    """Converter for positive numbers separated by commas."""
    found = tuple(real(part) for part in text.split(","))
    if min(found) <= 0:
        raise ArgumentTypeError(f"{text}: expected numbers above 0")
    return found


def json_object(text: str) -> dict[str, Any]:
    """Converter for a JSON object."""
    import json

    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ArgumentTypeError(f"{text:.60}: not JSON: {e}") from None
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"{text}: expected a JSON object")
    return found
