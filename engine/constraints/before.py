"""Thoughts that come before an answer, as its grammar has them."""

from __future__ import annotations

from .writer import Writer

# gpt-oss: thoughts, then what is said before a call, or the answer.
THOUGHTS = "<|channel|>analysis<|message|>"
PREAMBLE = "<|channel|>commentary<|message|>"
FINAL = "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"


class Before:
    """Thoughts before an answer. open, close: their marks. opened: by the prompt already."""

    def __init__(self, open: str, close: str, opened: bool) -> None:
        self.open, self.close, self.opened = open, close, opened

    def written(self, w: Writer) -> str:
        """Their rule, and space behind them."""
        if self.opened:
            return f"{w.until(self.close)} WS"
        return f"({w.rule(f'{w.text(self.open)} {w.until(self.close)}')} WS)?"
