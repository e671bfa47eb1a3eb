"""What a variant is: another way to run models of some kind, plugged in beside the architectures.

A variant is a package in this directory that has a `KIND`; it is found by being there. It may
change which weights a model has, rewrite its graphs, and place it on devices. Most models are of
none, so what a variant does is imported for the first model that it is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import Protocol

import numpy as np

from gguflow.engine.backends.base import Backend
from gguflow.engine.dataclass import dataclass
from gguflow.engine.found import modules_in
from gguflow.engine.load import ModelSource
from gguflow.engine.options import Options
from gguflow.engine.planning import Planner, Setup

# Loads a model as it is set up and runs a sequence of token ids, in pieces of n_ubatch: every
# piece's outputs, which the next one overwrites.
Trial = Callable[[Setup, Sequence[int]], Iterator[Sequence[np.ndarray]]]


@dataclass(frozen=True)
class Tools:
    """What a variant may decide by. device: the backend that models are offloaded to; host: the one
    that runs the rest; None where a run has no such backend."""

    planner: Planner
    trial: Trial
    device: Backend | None
    host: Backend | None


@dataclass(frozen=True, eq=False)
class Decision:
    """A setup, and what the user should know of how it came about."""

    setup: Setup
    notes: tuple[str, ...] = ()


class Variant(Protocol):
    """One variant. All of it is pure: a setup is given and another one comes back."""

    def prepare(self, setup: Setup) -> Setup:
        """The weights and rewrites that the options ask for. Raises ModelError, GgufError or
        OptionError for what does not go with the model."""

    def place(self, original: Setup, setup: Setup, tools: Tools) -> Decision:
        """What is left to decide when weights are known and whole layers are placed: by placement
        rules of the variant's own, or by measurement.

        original: as before `prepare`. Raises MemoryError with the figures when it does not fit.
        """

    def again(self, setup: Setup, changed: frozenset[str]) -> Setup:
        """A setup that was prepared, after fields of its options changed; what is placed stays."""


def _nothing(source: ModelSource, options: Options) -> None:
    """There is no option that only the variant has."""


@dataclass(frozen=True)
class Kind:
    """Which models a variant is for.

    applies: whether it is for a model with these options. refuse: for models that it is not for,
    raises ModelError or OptionError naming an option that only the variant has. variant: imports
    and makes it.
    """

    name: str
    applies: Callable[[ModelSource, Options], bool]
    variant: Callable[[], Variant]
    refuse: Callable[[ModelSource, Options], None] = _nothing


@cache
def kinds() -> tuple[Kind, ...]:
    """Those of every variant there is, by name."""
    package = import_module("gguflow.engine.variants")
    found = (m.name for m in modules_in(package.__path__) if m.name != "base")
    return tuple(import_module(f"gguflow.engine.variants.{name}").KIND for name in sorted(found))
