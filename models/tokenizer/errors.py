"""The error every tokenizer problem in a file is reported with."""

from __future__ import annotations


class TokenizerError(ValueError):
    """Tokenizer metadata that cannot be used: names the file (if known), the key and the entry."""

    def __init__(self, key: str, problem: str, source: str | None = None) -> None:
        self.key = key
        self.problem = problem
        self.source = source
        super().__init__(f"{source}: {key}: {problem}" if source else f"{key}: {problem}")
