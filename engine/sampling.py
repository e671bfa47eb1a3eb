"""Sampler settings and the small buffers through which they reach the `sample` op."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from gguflow.engine.dataclass import dataclass, field

N_HISTORY = 256  # tokens the op's repetition penalty can look back at

# llama.cpp's samplers in its order; a setting of a sampler that is not asked for does nothing.
SAMPLERS = (
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature",
)  # fmt: skip
# Other names that llama.cpp takes for them.
SAMPLER_ALIASES = {
    "top-k": "top_k", "top-p": "top_p", "nucleus": "top_p", "typical-p": "typ_p",
    "typical": "typ_p", "typ-p": "typ_p", "typ": "typ_p", "min-p": "min_p", "temp": "temperature",
    "top-n-sigma": "top_n_sigma",
}  # fmt: skip
_OP_ORDER = ("penalties", "top_k", "top_p", "min_p", "temperature")  # what `sample` does


class SamplerError(ValueError):
    """A field of `SamplerSettings` out of its range: names it."""


@dataclass(frozen=True)
class SamplerSettings:
    """llama.cpp's settings, defaults and order.

    temperature <= 0 picks the most likely token. seed None draws one. repeat_last_n, and
    dry_penalty_last_n: tokens looked back at, 0 for off, -1 for all. samplers: which run, in this
    order; mirostat 1 or 2 runs after temperature in place of all of them.

    Raises SamplerError naming the field.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    samplers: Sequence[str] = SAMPLERS

    def __post_init__(self) -> None:
        whole = (("top_k", 0, (1 << 24) - 1), ("repeat_last_n", -1, (1 << 31) - 1),
                 ("dry_allowed_length", 0, (1 << 31) - 1), ("mirostat", 0, 2),
                 ("dry_penalty_last_n", -1, (1 << 31) - 1))  # fmt: skip
        for name, least, most in whole:
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise SamplerError(f"`{name}` {value!r}: expected a whole number")
            if not least <= int(value) <= most:
                raise SamplerError(f"`{name}` {value}: out of range, expected {least} to {most}")
        if self.seed is not None:
            if not isinstance(self.seed, Integral) or isinstance(self.seed, bool):
                raise SamplerError(f"`seed` {self.seed!r}: expected a whole number or None")
            if not -(1 << 63) <= self.seed < 1 << 63:
                raise SamplerError(f"`seed` {self.seed}: out of range, expected 64 bits")
        inf = math.inf
        real = (
            ("temperature", lambda x: True, "a number"),
            ("top_p", lambda x: 0.0 < x <= 1.0, "above 0, up to 1"),
            ("min_p", lambda x: 0.0 <= x <= 1.0, "0 to 1"),
            ("repeat_penalty", lambda x: 0.0 < x < inf, "above 0"),
            ("presence_penalty", lambda x: -inf < x < inf, "a finite number"),
            ("frequency_penalty", lambda x: -inf < x < inf, "a finite number"),
            ("typical_p", lambda x: 0.0 < x <= 1.0, "above 0, up to 1"),
            ("top_n_sigma", lambda x: x < inf, "a number, 0 or less for off"),
            ("xtc_probability", lambda x: 0.0 <= x <= 1.0, "0 to 1"),
            ("xtc_threshold", lambda x: 0.0 <= x <= 1.0, "0 to 1"),
            ("dry_multiplier", lambda x: 0.0 <= x < inf, "0 or more"),
            ("dry_base", lambda x: 0.0 <= x < inf, "0 or more"),
            ("dynatemp_range", lambda x: 0.0 <= x < inf, "0 or more"),
            ("dynatemp_exponent", lambda x: 0.0 <= x < inf, "0 or more"),
            ("mirostat_tau", lambda x: 0.0 <= x < inf, "0 or more"),
            ("mirostat_eta", lambda x: 0.0 <= x < inf, "0 or more"),
        )
        for name, fits, expected in real:
            value = getattr(self, name)
            if not isinstance(value, Real) or isinstance(value, bool):
                raise SamplerError(f"`{name}` {value!r}: expected a number")
            if math.isnan(value) or not fits(value):
                raise SamplerError(f"`{name}` {value}: out of range, expected {expected}")
        for name in ("samplers", "dry_sequence_breakers"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(x, str) for x in value):
                raise SamplerError(f"`{name}` {value!r}: expected a list of names")
            object.__setattr__(self, name, tuple(value))
        names = tuple(SAMPLER_ALIASES.get(name, name) for name in self.samplers)
        for name in names:
            if name not in SAMPLERS:
                raise SamplerError(f"`samplers` {name!r}: expected some of {', '.join(SAMPLERS)}")
        object.__setattr__(self, "samplers", names)

    @property
    def chain(self) -> tuple[str, ...]:
        """The samplers that do something, in order; mirostat's is temperature alone."""
        if self.mirostat:
            return ("temperature",)
        penalizes = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) != (
            1,
            0,
            0,
        )
        works = {
            "penalties": penalizes and self.repeat_last_n != 0,
            "dry": self.dry_multiplier > 0 and self.dry_base >= 1 and self.dry_penalty_last_n != 0,
            "top_n_sigma": self.top_n_sigma > 0,
            "top_k": self.top_k > 0,
            "typ_p": self.typical_p < 1,
            "top_p": self.top_p < 1,
            "min_p": self.min_p > 0,
            "xtc": self.xtc_probability > 0 and self.xtc_threshold <= 0.5,
            "temperature": True,
        }
        return tuple(name for name in self.samplers if works[name])

    @property
    def is_plain(self) -> bool:
        """Whether the `sample` op does all of it."""
        chain = self.chain
        at = [_OP_ORDER.index(name) if name in _OP_ORDER else -1 for name in chain]
        if self.mirostat or -1 in at or at != sorted(set(at)):
            return False
        if self.dynatemp_range > 0 and "temperature" in chain:
            return False
        others = self.presence_penalty or self.frequency_penalty
        far = not 0 <= self.repeat_last_n <= N_HISTORY
        return "penalties" not in chain or not (others or far)

    def vector(self) -> NDArray[np.float32]:
        """The `sample` op's settings operand, float32 [8], where `is_plain`."""
        chain = self.chain
        neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        values = [getattr(self, name) if name in chain else off for name, off in neutral.items()]
        penalty = (self.repeat_penalty, self.repeat_last_n) if "penalties" in chain else (1, 0)
        return np.array([*values, *penalty, 0, 0], np.float32)


class SamplerFields(TypedDict, total=False):
    """The fields of `SamplerSettings` as keyword arguments."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    seed: int | None
    presence_penalty: float
    frequency_penalty: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    dynatemp_range: float
    dynatemp_exponent: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    samplers: Sequence[str]


def seed_of(settings: SamplerSettings) -> int:
    """The seed of a generation: what was asked for, or one drawn now."""
    seed = settings.seed
    return int.from_bytes(os.urandom(4)) >> 1 if seed is None or seed == -1 else seed


GREEDY = SamplerSettings(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)


@dataclass
class SamplerState:
    """What changes from token to token: the draw counter and the tokens seen."""

    settings: SamplerSettings = field(default_factory=SamplerSettings)

    def __post_init__(self) -> None:
        self.seed = seed_of(self.settings)
        self.vector = self.settings.vector()
        self.rng = np.array([self.seed, 0], np.int64)
        self.history = np.full(N_HISTORY, -1, np.int32)  # oldest first, -1 where there is none yet

    def accept(self, token: int) -> None:
        """Remember a token, the prompt's included."""
        self.history[:-1] = self.history[1:]
        self.history[-1] = token

    def advance(self) -> None:
        """The next draw uses the next number of the stream."""
        self.rng[1] += 1


class SamplerRows:
    """The same for many sequences, as the rows of three arrays: settings f32 [n, 8], rng i64
    [n, 2], history i32 [n, N_HISTORY]. The history is kept where there is a penalty to apply."""

    def __init__(self, n: int) -> None:
        self.settings = np.zeros((n, 8), np.float32)
        self.rng = np.zeros((n, 2), np.int64)
        self.history = np.full((n, N_HISTORY), -1, np.int32)

    def set(
        self, i: int, settings: SamplerSettings, seed: int, tokens: Sequence[int], n_drawn: int
    ) -> None:
        """Row i for a sequence of tokens, of which so many were drawn."""
        self.settings[i] = settings.vector()
        self.rng[i] = seed, n_drawn
        self.history[i] = -1
        last = tokens[-N_HISTORY:]
        self.history[i, N_HISTORY - len(last) :] = last

    def accept(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """A drawn token for each of some rows."""
        self.rng[rows, 1] += 1
        penalized = self.settings[rows, 4] != 1
        if penalized.any():
            rows, tokens = rows[penalized], tokens[penalized]
            self.history[rows, :-1] = self.history[rows, 1:]
            self.history[rows, -1] = tokens
