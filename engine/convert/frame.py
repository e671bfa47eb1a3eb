"""The tokens that tokenizer.json's post-processor puts around a text."""

from __future__ import annotations

from typing import Any

from gguflow.engine.dataclass import dataclass

from .checkpoint import Checkpoint


@dataclass(frozen=True)
class Frame:
    """What texts begin and end with; None for nothing."""

    first: str | None
    last: str | None


def frame_of(source: Checkpoint) -> Frame | None:
    """None where there is no post-processor that says it."""
    post = source.json("tokenizer.json", needed=False).get("post_processor")
    if not isinstance(post, dict):
        return None
    for step in post.get("processors", [post]):
        if not isinstance(step, dict):
            continue
        if step.get("type") in ("BertProcessing", "RobertaProcessing"):
            first, last = (step.get(end) for end in ("cls", "sep"))
            return Frame(*(x[0] if isinstance(x, list) and x else None for x in (first, last)))
        single = step.get("single")
        if isinstance(single, list) and single:
            return Frame(_token(single[0]), _token(single[-1]))
    return None


def _token(part: Any) -> str | None:
    token = part.get("SpecialToken") if isinstance(part, dict) else None
    text = token.get("id") if isinstance(token, dict) else None
    return text if isinstance(text, str) else None
