"""Mirostat 1 and 2 (Basu et al. 2020): candidates cut so that surprises average a target."""

from __future__ import annotations

import math

import numpy as np

from gguflow.engine.sampling import SamplerSettings

from .candidates import Candidates

M = 100  # candidates from which the first version estimates how probabilities fall off


class Mirostat:
    """The state of a generation: mu, in bits, which `observe` moves after every choice."""

    def __init__(self, settings: SamplerSettings, n_vocab: int) -> None:
        self.settings, self.n_vocab = settings, n_vocab
        self.mu = 2.0 * settings.mirostat_tau

    def cut(self, c: Candidates) -> None:
        """Leave what mu allows, at least one."""
        c.sort()
        p = c.probabilities()
        if self.settings.mirostat == 1:
            c.keep(slice(self._k(p)))
            return
        with np.errstate(divide="ignore"):
            above = -np.log2(p) > np.float32(self.mu)
        c.keep(slice(max(1, int(np.argmax(above)) if above.any() else len(c))))

    def _k(self, p: np.ndarray) -> int:
        """How many of the most likely, by Zipf's exponent."""
        n = min(M - 1, len(p) - 1)
        if n < 1:
            return 1
        i = np.arange(n)
        t = np.log((i + 2) / (i + 1))
        with np.errstate(all="ignore"):
            b = np.log(p[:n].astype(np.float64) / p[1 : n + 1])
            s = float((t * b).sum() / (t * t).sum())
            over = s - 1
            k = np.float64(over * 2.0**self.mu / (1 - float(self.n_vocab) ** -over)) ** (1 / s)
        if math.isnan(k) or k < 1:
            return 1
        return int(min(k, len(p)))

    def observe(self, c: Candidates, token: int) -> None:
        """A token of what `cut` left was chosen."""
        p = float(c.probabilities()[int(np.argmax(c.ids == token))])
        self.mu -= self.settings.mirostat_eta * (-math.log2(p) - self.settings.mirostat_tau)
