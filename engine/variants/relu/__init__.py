"""Sparse inference of ReLU models: what runs, and which neurons live where.

The names here import neither models nor backends; statistics, the solver and training are modules
of this package to import by name.
"""

from __future__ import annotations

from .run import SparseRun
from .split import NeuronSplit, StoredSplit, open_split, read_split, write_split

__all__ = ["NeuronSplit", "SparseRun", "StoredSplit", "open_split", "read_split", "write_split"]
