"""Text that a stranger would put into a file: what a terminal, a browser or a reader falls for."""

from __future__ import annotations

import re

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"  # OSC 52
COLOUR = "\x1b[31m"
C1 = "\x9b2J\x85\x90"
BIDI = "\u202egnp.exe\u202c\u2066x\u2069\u200f"
LINES = "\na forged line\r\x0b\u2028"
MARKUP = "</script><img src=x onerror=alert(1)>'; DROP TABLE x; --"
ALL = "\x00" + CLIPBOARD + COLOUR + C1 + BIDI + LINES + "\x7f" + MARKUP

# Nothing of these may come out as it is, whatever is shown.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def commands(text: str) -> list[str]:
    """The characters in a text that a terminal or a reader would fall for."""
    return [repr(c) for c in _COMMANDS.findall(text.replace("\r\n", "\n"))]
