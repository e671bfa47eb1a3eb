"""What can go wrong between machines: one line each."""

from __future__ import annotations


class ClusterError(RuntimeError):
    """A cluster cannot be reached, has too little room, or has lost what was to be used."""


class ClusterFileError(ClusterError):
    """A node lacks the model's file, or has another one: names the node and the file."""
