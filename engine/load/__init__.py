"""Loading: a GGUF file becomes an architecture, checked weights, and weights on their backends."""

from __future__ import annotations

from .parts import columns_of, rows_of
from .random import random_model
from .source import COMPUTE_TYPES, ModelSource, WeightSource, file_weight, open_model
from .weights import Progress, WeightStore, weight_users

__all__ = [
    "COMPUTE_TYPES", "ModelSource", "Progress", "WeightSource", "WeightStore", "columns_of",
    "file_weight", "open_model", "random_model", "rows_of", "weight_users",
]  # fmt: skip
