"""Errors of the profiling layer: one line each, saying which file, line and field."""

from __future__ import annotations

from gguflow.engine.harmless import message_line


class ProfileError(ValueError):
    """Base of what can go wrong with a profile."""

    def __init__(self, text: str) -> None:
        super().__init__(message_line(text))


class ProfilePathError(ProfileError):
    """An export cannot be written where the user asked: a bad argument."""


class ProfileFileError(ProfileError):
    """A dump that cannot be read back: names the file, the line and the field."""
