"""The tokens a sampler may still choose, with their logits."""

from __future__ import annotations

import numpy as np

from gguflow.engine.ops.sample import exp32

LARGEST = float(np.finfo(np.float32).max)


class Candidates:
    """Tokens and logits, f32. Sorted: by descending logit, then ascending id."""

    def __init__(self, logits: np.ndarray) -> None:
        """Every token of a row of logits, f32 [n_vocab]; NaN counts as -inf, infinity as the
        largest number."""
        self.ids = np.arange(len(logits))
        self.logits = np.nan_to_num(logits, nan=-np.inf, posinf=LARGEST, neginf=-np.inf)
        self.is_sorted = False

    def __len__(self) -> int:
        return len(self.ids)

    def keep(self, which: np.ndarray | slice) -> None:
        """Only those at some places, or where a mask is true, in that order."""
        self.ids, self.logits = self.ids[which], self.logits[which]

    def change(self, logits: np.ndarray) -> None:
        """Other logits for the same tokens."""
        self.logits, self.is_sorted = logits, False

    def sort(self) -> None:
        """Descending, equals by id."""
        if not self.is_sorted:
            # Ids ascend within equal logits: all samplers but this one keep their order.
            self.keep(np.argsort(-self.logits, kind="stable"))
            self.is_sorted = True

    def keep_largest(self, k: int) -> None:
        """The first k of the sorted ones, without sorting the others."""
        if not self.is_sorted and k < len(self) // 2:
            least = np.partition(self.logits, len(self) - k)[len(self) - k]
            self.keep(self.logits >= least)
        self.sort()
        self.keep(slice(k))

    def probabilities(self) -> np.ndarray:
        """Softmax of the logits, f32."""
        weights = exp32(self.logits - self.logits.max())
        return weights / np.cumsum(weights, dtype=np.float32)[-1]

    def surprises(self) -> np.ndarray:
        """-ln of the probabilities, f32."""
        with np.errstate(divide="ignore"):
            return -np.log(self.probabilities())
