"""llama.cpp's samplers on the host, for what the `sample` op does not know."""

from .candidates import Candidates
from .chain import Chain

__all__ = ["Candidates", "Chain"]
