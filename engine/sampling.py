"""Sampler settings and the small buffers through which they reach the `sample` op."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

N_HISTORY = 256  # tokens the repetition penalty can look back at


class SamplerError(ValueError):
    """A field of `SamplerSettings` out of its range: names it."""


@dataclass(frozen=True)
class SamplerSettings:
    """llama.cpp's defaults. Order: repetition penalty, top-k, top-p, min-p, temperature, draw.

    temperature <= 0 picks the most likely token. seed None draws one.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        seed = self.seed or 0
        checks = (
            ("temperature", self.temperature, not math.isnan(self.temperature), "a number"),
            ("top_k", self.top_k, 0 <= self.top_k < 1 << 24, "0 to 16777215"),
            ("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "above 0, up to 1"),
            ("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "0 to 1"),
            ("repeat_penalty", self.repeat_penalty, 0.0 < self.repeat_penalty < math.inf,
             "above 0"),
            ("repeat_last_n", self.repeat_last_n, 0 <= self.repeat_last_n <= N_HISTORY,
             f"0 to {N_HISTORY}"),
            ("seed", self.seed, -(1 << 63) <= seed < 1 << 63, "64 bits"),
        )  # fmt: skip
        for name, value, ok, expected in checks:
            if not ok:
                raise SamplerError(f"`{name}` {value}: out of range, expected {expected}")

    def vector(self) -> np.ndarray:
        """The `sample` op's settings operand, float32 [8]."""
        return np.array(
            [self.temperature, self.top_k, self.top_p, self.min_p, self.repeat_penalty,
             self.repeat_last_n, 0, 0], np.float32,
        )  # fmt: skip


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
