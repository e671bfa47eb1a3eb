"""Text from files and models, made harmless to a terminal and to who reads it there.

A file's names and values and what a model writes are a stranger's. A terminal takes some characters
for commands (ESC, C0 and C1: OSC 52 writes the clipboard), others turn the order of what is read
(bidi controls), or begin a line that the program never wrote. They are shown as Python escapes
them, so that nothing is left out; everything else stays.
"""

from __future__ import annotations

import re

# Of several lines: line breaks of all kinds and tabs are text, and so are marks of direction and
# joiners, which Arabic, Hebrew and emoji need and which turn nothing but their neighbours.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff]"
    "|\r(?!\n)"
)
_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb]")
_MESSAGE = 6000  # characters
# What a spreadsheet takes for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def one_line(text: str) -> str:
    r"""A name, a value, a message: whatever is not printable as \xNN, \uNNNN or \UNNNNNNNN, line
    breaks and tabs too."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def message_line(text: str) -> str:
    """An error's message as `one_line`; of one that quotes a very long text, its ends."""
    if len(text) > _MESSAGE:
        text = f"{text[: _MESSAGE // 2]} ... {text[-_MESSAGE // 2 :]}"
    return one_line(text)


def many_lines(text: str) -> str:
    """The same of text that has lines: line breaks, tabs and what writing systems need stay.

    A piece of a stream may be given by itself: no character depends on those before it.
    """
    return _UNSAFE.sub(lambda m: _escaped(m[0]), text)


def json_text(document: str) -> str:
    """A JSON document that means the same, and in whose text no such character stands by itself."""
    return _IN_JSON.sub(lambda m: f"\\u{ord(m[0]):04x}", document)


def cell(text: str) -> str:
    """A text in a table that a spreadsheet may open: one line that is no formula."""
    text = one_line(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _escaped(c: str) -> str:
    return repr(c)[1:-1] if not c.isprintable() else f"\\u{ord(c):04x}"
