"""Keeps an answer within its constraint: every logit that it forbids is -inf."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher

from .constraint import Constraint
from .error import ConstraintError


class Masker:
    """Sets the logits of tokens that may not come next to -inf: a `LogitsProcessor`.

    made_from: its constraint and the tokens of its prompt, to make another one elsewhere.
    """

    def __init__(
        self, n_vocab: int, matcher: LLMatcher, n_prompt: int, constraint: Constraint
    ) -> None:
        self._matcher, self._field = matcher, constraint.field
        self.made_from = constraint, n_prompt
        self._n_seen = n_prompt
        self._mask = np.zeros((n_vocab + 31) // 32, np.uint32)
        self._n_vocab = n_vocab

    def __call__(self, ids: Sequence[int], logits: np.ndarray) -> None:
        matcher = self._matcher
        for token in ids[self._n_seen :]:
            if not matcher.consume_token(token):
                raise ConstraintError(f"{self._field}: {reason(matcher.get_error())}")
        self._n_seen = len(ids)
        matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if matcher.is_error():
            raise ConstraintError(f"{self._field}: {reason(matcher.get_error())}")
        allowed = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[: self._n_vocab]
        logits[allowed == 0] = -np.inf


def reason(text: str) -> str:
    """llguidance's message on one line, without what it prints of its state."""
    line = " ".join(text.partition("\n<state>")[0].split())
    return line[:300] or "the constraint cannot be obeyed"
