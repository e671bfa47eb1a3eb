"""Loading: a GGUF file becomes an architecture, checked weights, and weights on their backends.

`random` has models of named shapes, to import by name: few need them.
"""

from __future__ import annotations

from .kept import Keeper, keeper_of
from .parts import columns_of, rows_of
from .source import COMPUTE_TYPES, ModelSource, RepeatedRows, WeightSource, file_weight, open_model
from .weights import Progress, WeightStore, weight_users

__all__ = [
    "COMPUTE_TYPES", "Keeper", "ModelSource", "Progress", "RepeatedRows", "WeightSource",
    "WeightStore", "columns_of", "file_weight", "keeper_of", "open_model", "rows_of",
    "weight_users",
]  # fmt: skip
