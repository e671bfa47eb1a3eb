"""A request's samplers, one after the other, and the draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gguflow.engine.ops.sample import exp32, uniform
from gguflow.engine.sampling import SamplerSettings

from . import filters
from .candidates import Candidates
from .dry import Breakers, dry_penalties
from .mirostat import Mirostat

_XTC_STREAM = 0x5851F42D4C957F2D  # keeps xtc's random numbers apart from the draw's

_FILTERS: dict[str, Callable[[Candidates, SamplerSettings], None]] = {
    "top_n_sigma": filters.top_n_sigma,
    "top_k": filters.top_k,
    "typ_p": filters.typ_p,
    "top_p": filters.top_p,
    "min_p": filters.min_p,
}
_KEEPS_NO_MAXIMUM = {"typ_p", "xtc"}


class Chain:
    """Chooses tokens from logits as `settings` ask, in llama.cpp's way.

    With settings that the `sample` op knows (`SamplerSettings.is_plain`), the choice is the op's to
    the bit. Random numbers are functions of (seed, step). Only mirostat keeps a state. breakers:
    where dry's repetitions end.
    """

    def __init__(self, settings: SamplerSettings, n_vocab: int, breakers: Breakers | None) -> None:
        self.settings = settings
        self.mirostat = Mirostat(settings, n_vocab) if settings.mirostat else None
        self._breakers = breakers or {}
        self._names = settings.chain
        greedy = settings.temperature <= 0 and not settings.dynatemp_range
        if greedy and "temperature" in self._names and not _KEEPS_NO_MAXIMUM & {*self._names}:
            # The largest logit passes every filter: nothing has to be sorted to find it.
            self._names = tuple(n for n in self._names if n not in _FILTERS)

    def choose(self, logits: np.ndarray, ids: Sequence[int], seed: int, step: int) -> int:
        """The token after `ids`, given its logits, f32 [n_vocab], of which one is above -inf."""
        c = Candidates(logits)
        temperature = self.filter(c, ids, seed, step)
        token = draw(c, temperature, uniform(seed, step))
        if self.mirostat is not None:
            self.mirostat.observe(c, token)
        return token

    def filter(self, c: Candidates, ids: Sequence[int], seed: int, step: int) -> float:
        """Leave what may be chosen; returns the temperature that is still to be applied."""
        with np.errstate(all="ignore"):
            for i, name in enumerate(self._names):
                if name == "temperature":
                    last = i == len(self._names) - 1 and self.mirostat is None
                    temperature = self._temperature(c)
                    if temperature <= 0:
                        _keep_largest(c)
                    elif last:
                        return temperature
                    else:
                        c.logits = c.logits / np.float32(temperature)
                else:
                    self._apply(name, c, ids, seed, step)
            if self.mirostat is not None:
                self.mirostat.cut(c)
        return 1.0

    def _apply(self, name: str, c: Candidates, ids: Sequence[int], seed: int, step: int) -> None:
        s = self.settings
        if name == "penalties":
            filters.penalties(c, s, ids)
        elif name == "dry":
            if amounts := dry_penalties(s, ids, self._breakers):
                filters.subtract(c, amounts)
        elif name == "xtc":
            filters.xtc(c, s, uniform(seed ^ _XTC_STREAM, step))
        else:
            _FILTERS[name](c, s)

    def _temperature(self, c: Candidates) -> float:
        s = self.settings
        if s.dynatemp_range > 0 and self.mirostat is None:
            return filters.dynamic_temperature(c, s) if len(c) > 1 else 1.0
        return s.temperature


def _keep_largest(c: Candidates) -> None:
    """The most likely token, the lowest id on ties."""
    largest = np.flatnonzero(c.logits == c.logits.max())
    c.keep(largest[[np.argmin(c.ids[largest])]])


def draw(c: Candidates, temperature: float, u: np.float32) -> int:
    """The token that `u` picks, by steps 6 and 2 of the `sample` op."""
    if len(c) == 1:
        return int(c.ids[0])
    c.sort()
    with np.errstate(all="ignore"):
        below = (c.logits - c.logits[0]) / np.float32(temperature)
        sums = np.cumsum(exp32(below), dtype=np.float32)
    above = sums > u * sums[-1]
    return int(c.ids[np.argmax(above) if above.any() else len(sums) - 1])
