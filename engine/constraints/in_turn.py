"""A caller's own processor of logits and a constraint, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from .error import ConstraintError
from .masker import Masker

Processor = Callable[[Sequence[int], NDArray[np.float32]], object]


class InTurn:
    """First what the caller gave, then the mask, so that nothing gets past the form: a
    `LogitsProcessor`. field: who asked for the form, for messages."""

    def __init__(self, first: Processor, mask: Masker, field: str) -> None:
        self._first, self._mask, self._field = first, mask, field

    def __call__(self, ids: Sequence[int], logits: NDArray[np.float32]) -> None:
        self._first(ids, logits)
        self._mask(ids, logits)
        if not (logits > -np.inf).any():
            raise ConstraintError(
                f"{self._field}: logits_processor forbids every token that may come next"
            )
