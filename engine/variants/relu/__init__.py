"""ReLU models: what is skipped, which neurons a device keeps, predictors.

`run` has the graph rewrite, `variant` what plugs in; `tools` measures and trains with whole models.
"""

from __future__ import annotations

from .run import SparseRun, sparse_run
from .split import NeuronSplit, StoredSplit, open_split, read_split, write_split
from .variant import ReluVariant

VARIANT = ReluVariant()

__all__ = [
    "VARIANT", "NeuronSplit", "SparseRun", "StoredSplit", "open_split", "read_split", "sparse_run",
    "write_split",
]  # fmt: skip
