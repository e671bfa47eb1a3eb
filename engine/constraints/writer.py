"""Writes grammars in llguidance's Lark: literals with control tokens, text up to a mark, JSON."""

from __future__ import annotations

import json
from typing import Any, Protocol

from .constraint import Constraint
from .forms import with_options

MOST = 48  # characters of a control token that a form may hold


class Specials(Protocol):
    """The control tokens of a vocabulary."""

    def special_id(self, text: str) -> int | None:
        """The id of a control token, None for what is none."""


class Writer:
    """Rules of one grammar. inner: other grammars that it refers to by `@name`."""

    def __init__(self, vocabulary: Specials) -> None:
        self._vocabulary = vocabulary
        self.rules: list[str] = []
        self.inner: list[dict[str, Any]] = []
        self._n = 0

    def rule(self, body: str, mark: str = "") -> str:
        """A new rule's name. mark: behind it, `[lazy]` for one that ends as soon as it can."""
        name = f"r{self._n}"
        self._n += 1
        self.rules.append(f"{name}{mark}: {body}")
        return name

    def text(self, text: str) -> str:
        """A literal, with control tokens by their number; a NUL is a number."""
        parts, plain, at = list[str](), "", 0
        while at < len(text):
            token = special_at(self._vocabulary, text, at)
            if token is None and text[at] != "\0":
                plain, at = plain + text[at], at + 1
                continue
            if plain:
                parts.append(json.dumps(plain))
            parts.append("COUNT" if token is None else f"<[{token[1]}]>")
            plain, at = "", at + (1 if token is None else len(token[0]))
        if plain:
            parts.append(json.dumps(plain))
        return " ".join(parts)

    def until(self, mark: str) -> str:
        """Any text, and a mark behind it."""
        if special_at(self._vocabulary, mark, 0) is not None:  # a token that text cannot hold
            return f"TEXT {self.text(mark)}"
        # A lazy lexeme ends as soon as it can: no text goes on behind the mark.
        n = next((i for i in range(len(mark)) if special_at(self._vocabulary, mark, i)), len(mark))
        head = self.rule(f"TEXT {json.dumps(mark[:n])}", "[lazy]")
        return f"{head} {self.text(mark[n:])}".rstrip()

    def json(self, schema: Any) -> str:
        """JSON of a schema."""
        return self.rule(f"%json {json.dumps(with_options(schema))}")

    def other(self, constraint: Constraint) -> str:
        """Another constraint's grammar."""
        name = f"inner{len(self.inner)}"
        text = constraint.grammar
        if text.lstrip().startswith("{"):
            found = json.loads(text)["grammars"][0]
        else:
            found = {"lark_grammar": text}
        self.inner.append({k: v for k, v in found.items() if k != "name"} | {"name": name})
        return f"@{name}"

    def constraint(self, start: str, field: str, schema: Any = None) -> Constraint:
        """The whole, which begins with `start`."""
        ends = [r"TEXT: /(.|\n)*/", "COUNT: /[0-9]{1,4}/", r"WS: /[ \n]{0,4}/"]
        used = " ".join([start, *self.rules])
        ends = [e for e in ends if e.partition(":")[0] in used]
        text = "\n".join(["%llguidance {}", f"start: {start}", *self.rules, *ends])
        if self.inner:
            text = json.dumps({"grammars": [{"lark_grammar": text}, *self.inner]})
        return Constraint(text, field, schema)


def special_at(vocabulary: Specials, text: str, at: int) -> tuple[str, int] | None:
    """The control token that a text has at a place, the longest of several."""
    if text[at] not in "<[":
        return None
    for n in range(min(MOST, len(text) - at), 2, -1):
        token = vocabulary.special_id(text[at : at + n])
        if token is not None:
            return text[at : at + n], token
    return None


def specials_in(vocabulary: Specials, text: str) -> set[int]:
    """All control tokens of a text."""
    found = (special_at(vocabulary, text, at) for at in range(len(text)))
    return {f[1] for f in found if f is not None}
