"""How large a Lark grammar becomes: its patterns, its schemas, and its terminals written out.

llguidance counts what a terminal costs between its items, not within one: of two repetitions around
one another it writes out gigabytes for minutes before it counts anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from .error import ConstraintRefused
from .patterns import check_pattern, parts

# Characters of a terminal when its repetitions, and the terminals it is made of, are written out.
# llguidance takes up to three microseconds and half a kilobyte for each.
MOST_WRITTEN_OUT = 50_000
_NUMBER = r"\s*\+?[0-9]+\s*"
# As llguidance reads them. A comment comes first: no expression is empty.
_TOKEN = re.compile(
    rf"""(?P<space>[ \t\r\n]+ | (?:\#|//)[^\n]*)
    | (?P<string>"(?:\\(?:["\\/bfnrt]|u[a-fA-F0-9]{{4}}|x[a-fA-F0-9]{{2}})
                  |[^"\\\x00-\x1f\x7f])*"i?)
    | (?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    | (?P<value>%(?:json|regex|llguidance)) | (?P<lark>%lark) | (?P<if>%if)
    | (?P<statement>%[a-z]+)
    | (?P<times>{{(?:{_NUMBER}(?:,(?:{_NUMBER}|\s*))?|\s*,{_NUMBER})}}
                  |~{_NUMBER}(?:\.\.{_NUMBER})?)
    | (?P<name>!?[_?]?[a-z][_a-z0-9-]* | _?[A-Z][_A-Z0-9-]*)
    | (?P<open>[(\[{{]) | (?P<close>[)\]}}]) | (?P<colon>:(?!:)) | (?P<equals>=)
    | 0[xX][0-9a-fA-F]+ | [+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?
    | <[^<>\s]+> | @[a-zA-Z0-9_-]+ | -> | \.\. | :: | [+*?.,~&|_]""",
    re.VERBOSE,
)


class _Times(int):
    """How often the item before is repeated."""


# What a definition says: sizes of its own texts, names of others, brackets, repetitions.
_Items = list[int | str]


class _Reader:
    """Takes a grammar's definitions apart. terminals: those that are written out, by name."""

    def __init__(self, text: str, field: str, check_schema: Callable[[Any, str, str], None]):
        self.terminals = dict[str, _Items]()
        self._field, self._check_schema = field, check_schema
        self._name, self._items = "", _Items()
        # Open brackets; of `%lark {`, within which other definitions stand, what it stands in.
        self._nests = False
        self._open = list[tuple[str, _Items] | None]()
        self._head = "", 0  # the last name outside of brackets, and its place among the items
        for kind, value in _tokens(text, field):
            self._take(kind, value)

    def _take(self, kind: str | None, value: Any) -> None:
        outside = not self._open or self._open[-1] is not None
        if kind == "string":
            self._items.append(len(value) - 2)
        elif kind == "regex":
            body, _, flags = value[1:].rpartition("/")
            pattern = f"(?{flags}){body}" if flags else body
            check_pattern(pattern, self._field, self._where())
            self._items.append(parts(pattern))
        elif kind == "times":
            numbers = [int(n[:9]) for n in re.findall("[0-9]+", value)]
            self._items.append(_Times(max([1, *numbers[-1:]])))
        elif kind == "name":
            if outside:
                self._head = value.lstrip("!?"), len(self._items)
            self._items.append(value)
        elif kind == "colon" and outside:
            self._define()
        elif kind == "open":
            self._enter()
        elif kind == "close":
            self._close()
        elif kind == "lark":
            self._nests = True
        elif kind == "equals":  # only attributes have it, which are behind the next rule's name
            self._name = self._head[0]
        elif kind == "statement":
            self._name = value
            self._items = self.terminals.setdefault(value, []) if value == "%ignore" else []
        elif kind == "%json":
            self._check_schema(value, self._field, self._where())

    def _define(self) -> None:
        """A rule is a lexeme, as terminals are, where it has attributes: `a[lazy]: ...`."""
        name, at = self._head
        lexeme = name.isupper() or len(self._items) > at + 1
        del self._items[at:]
        self._name = name
        self._items = self.terminals.setdefault(name, []) if lexeme else []

    def _enter(self) -> None:
        if self._nests:
            self._open.append((self._name, self._items))
            self._name, self._items, self._nests = "", _Items(), False
        else:
            self._open.append(None)
            self._items.append("(")

    def _close(self) -> None:
        around = self._open.pop() if self._open else None
        if around is None:
            self._items.append(")")
        else:
            self._name, self._items = around

    def _where(self) -> str:
        return f"{self._name or self._head[0]}: "


def check_lark(text: str, field: str, check_schema: Callable[[Any, str, str], None]) -> None:
    """Raises ConstraintRefused for a grammar that is small and becomes very large, by the name of
    the rule. check_schema: does so for the schema of a `%json`."""
    terminals = _Reader(text, field, check_schema).terminals
    # As large as what is written anyway, a terminal may always be.
    most = MOST_WRITTEN_OUT + sum(
        i for items in terminals.values() for i in items
        if isinstance(i, int) and not isinstance(i, _Times)
    )  # fmt: skip
    known = dict[str, int]()
    for name in terminals:
        for found in _in_order(name, terminals, known):
            known[found] = size = _written_out(terminals[found], known, most)
            if size > most:
                raise ConstraintRefused(
                    field, f"{found}: more than {MOST_WRITTEN_OUT} characters, written out"
                )


def _tokens(text: str, field: str) -> Iterator[tuple[str | None, Any]]:
    """Kinds and texts of tokens; of `%json` its value."""
    at, decoder = 0, json.JSONDecoder()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            line = text.count("\n", 0, at) + 1
            raise ConstraintRefused(field, f"no Lark grammar: line {line}: {text[at : at + 20]!r}")
        at, kind = found.end(), found.lastgroup
        if kind != "value":
            yield kind, found[0]
            continue
        while text[at : at + 1] in (" ", "\t", "\r", "\n"):
            at += 1
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            line = text.count("\n", 0, at) + 1
            raise ConstraintRefused(field, f"line {line}: no JSON after {found[0]}") from None
        if found[0] == "%regex":
            yield "string", text[at:end]
        else:
            yield ("%json" if found[0] == "%json" else "statement"), value
        at = end


def _in_order(
    name: str, terminals: dict[str, _Items], known: dict[str, int]
) -> Iterator[str]:  # fmt: skip
    """A terminal behind those that it is made of, but for those known. Of a circle, which
    llguidance refuses, each comes once."""
    begun, line = set[str](), [name]
    while line:
        top = line[-1]
        if top in known or top in begun:
            line.pop()
            if top not in known:
                yield top
            continue
        begun.add(top)
        line += (
            i for i in terminals[top]
            if isinstance(i, str) and i in terminals and i not in known and i not in begun
        )  # fmt: skip


def _written_out(items: _Items, known: dict[str, int], most: int) -> int:
    sizes, last = [0], 0  # of open brackets; of what a repetition would repeat
    for item in items:
        if isinstance(item, _Times):
            sizes[-1] += last * (item - 1)
            last *= item
        elif item == "(":
            sizes.append(0)
        elif item == ")":
            last = sizes.pop() if len(sizes) > 1 else 0
            sizes[-1] += last
        else:
            last = known.get(item, 0) if isinstance(item, str) else item
            sizes[-1] += last
        last, sizes[-1] = min(last, most + 1), min(sizes[-1], most + 1)
    return min(sum(sizes), most + 1)
