"""Errors of the profiling layer: one line each, saying which file, line and field."""

from __future__ import annotations


class ProfileError(ValueError):
    """Base of what can go wrong with a profile."""


class ProfilePathError(ProfileError):
    """An export cannot be written where the user asked: a bad argument."""


class ProfileFileError(ProfileError):
    """A dump that cannot be read back: names the file, the line and the field."""
