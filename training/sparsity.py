"""Pressing a relu model's neurons to fire less, towards a chosen share, at the least loss.

The idea is ProSparse's (Song and others, "ProSparse: Introducing and Enhancing Intrinsic
Activation Sparsity within Large Language Models", arXiv 2402.13516): an L1 penalty on the
feed-forward neurons' values, raised little by little, so that the model can adapt. Three things
differ. The penalty is on the neurons' contributions (`Block.firing`); its factor follows no
fixed schedule, but is steered so that the share of firing neurons follows a falling target; and
layers that fire less are pressed less, or whole layers fall silent.
"""

from __future__ import annotations

import math

from torch import Tensor

RAMP = 0.5  # the target is reached at this part of the run, the rest is for recovering
GAIN = 40.0  # e-folds of the factor over a whole run at a relative error of one
FAIR = 2.0  # a layer's pressure is its share of firing neurons over the goal, at most this
FACTOR_RANGE = (1e-5, 0.5)


class Pressure:
    """The penalty and its factor. `target` is the share of neurons that may fire, 0..1."""

    def __init__(self, target: float, factor: float = 5e-3) -> None:
        self.target, self.factor = target, factor
        self.goal = self.share = math.nan
        self._first: float | None = None
        self._progress = 0.0

    def __call__(self, firing: Tensor, progress: float) -> Tensor:
        """The penalty in nats, f32 []. firing: `Llama.forward`'s; progress: of the run, 0..1."""
        self.share = float(firing[:, 1].detach().mean())
        if self._first is None:
            self._first = max(self.share, self.target)
        ratio = self.target / self._first
        self.goal = self._first * ratio ** min(1.0, progress / RAMP)
        error = self.share / self.goal - 1
        self.factor *= math.exp(GAIN * max(-1.0, min(1.0, error)) * (progress - self._progress))
        self.factor = min(max(self.factor, FACTOR_RANGE[0]), FACTOR_RANGE[1])
        self._progress = progress
        shares = firing[:, 1].detach()
        return self.factor * (firing[:, 0] * (shares / self.goal).clamp(max=FAIR)).mean()

    def __str__(self) -> str:
        return f"penalty factor {self.factor:.5f}, fires {self.share:.1%}, goal {self.goal:.1%}"
