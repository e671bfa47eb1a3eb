"""What goes wrong with constraints. Imports nothing: whoever catches these need not have
llguidance."""

from __future__ import annotations


class ConstraintError(RuntimeError):
    """A constraint costs more than a step may take, or cannot go on."""


class ConstraintRefused(ConstraintError, ValueError):
    """A constraint that cannot be obeyed, found before anything is generated.

    field: what asked for it, which the message begins with. reason: the rest of the message. code:
    "constraint_refused" where the form itself is at fault; None for one that is too large or is no
    grammar at all.
    """

    def __init__(self, field: str, reason: str, code: str | None = None) -> None:
        super().__init__(f"{field}: {reason}")
        self.field, self.reason, self.code = field, reason, code
