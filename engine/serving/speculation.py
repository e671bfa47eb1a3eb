"""Speculation: tokens are guessed cheaply and several are checked in one run (Leviathan et al.
2023, arXiv 2211.17192; Saxena 2023, "prompt lookup decoding").

A guess is accepted only where it is the token that the model itself chooses at that position. The
random number of a draw belongs to its position (`sample`'s rng), and a row that checks a guess is
computed as a single generated token is, so a completion's bytes are those without speculation,
sampled ones included. What is lost by a wrong guess is time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from gguflow.engine.dataclass import dataclass
from gguflow.engine.gguf.keys import KeyReader

if TYPE_CHECKING:
    from gguflow.engine.model import Model

    from .runner import Sampling
    from .speculation_draft import DraftModel

MOST_DRAFT = 64  # tokens that may be guessed at once
MOST_ROWS = 128  # of a run that checks guesses, where there are no more sequences than that


def rows_to_check(n_seqs: int, n_guesses: int) -> int:
    """Rows of the largest run that checks so many guesses a sequence, or fewer of some: logits of
    all of them are large."""
    return max(n_seqs, min(n_seqs * (1 + n_guesses), MOST_ROWS))


class SpeculationError(ValueError):
    """A draft that cannot speak for the model, or a setting out of its range: names it."""


@dataclass
class Drafting:
    """What was guessed, since the engine or the generation began.

    rounds: runs that checked guesses. drafted: tokens guessed; accepted: those that came true.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def wasted(self) -> int:
        """Guesses whose rows were computed for nothing."""
        return self.drafted - self.accepted

    @property
    def acceptance(self) -> float:
        """The share that came true; 0 without any."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def facts(self) -> dict[str, float]:
        """What a profile says of it."""
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "wasted": self.wasted,
            "acceptance": round(self.acceptance, 4),
        }


@dataclass(frozen=True)
class Line:
    """A sequence that generates. key: who it is, to all its steps. seq: its number in the KV cache.
    tokens: all of it, of which the last one's row is missing. most: tokens it may still get."""

    key: int
    seq: int
    tokens: Sequence[int]
    most: int


# Chooses a line's next token from its logits, f32 [n_vocab], after those that the round has
# brought; negative for none, which ends the round for the line.
Pick = Callable[[np.ndarray, Sequence[int]], int]


class Drafter(Protocol):
    """Guesses what comes next."""

    @property
    def took(self) -> float:
        """Seconds of the last `draft` that `seconds` accounts for."""

    def draft(
        self, lines: Sequence[Line], lengths: Sequence[int], sampling: Sampling
    ) -> list[list[int]]:
        """For each line at most so many next tokens. sampling: operands of their next draws."""

    def seconds(self, n_lines: int) -> float:
        """What one more token for each of so many lines takes; 0 for next to nothing."""

    def forget(self, keys: set[int]) -> None:
        """These lines have ended."""


@runtime_checkable
class Prepared(Protocol):
    """A drafter that knows beforehand what it will guess. inner: a draft model that is run all the
    same."""

    inner: DraftModel | None

    def prepared(self, line: Line) -> np.ndarray:
        """Of every position of a line the token that is guessed there: int32, negative for none."""


@dataclass(frozen=True)
class Speculation:
    """How a model's tokens are guessed.

    draft: a smaller model with the same vocabulary. lookup: by n-grams of the prompt and of what
    was written; with a draft model as well, it is asked where no n-gram is found. lookup_cache: a
    file of n-grams of earlier texts, which those of this one are added to (see `save`).
    most, least: guesses in a round; fewer than `least` are not tried. p_min: a draft model stops at
    a token that it gives less probability. adaptive: lengths follow the measured acceptance and
    times, and nothing is guessed where that loses; otherwise always `most`.
    """

    draft: Model | None = None
    lookup: bool = False
    lookup_cache: str | Path = ""
    most: int = 16
    least: int = 0
    p_min: float = 0.0
    adaptive: bool = True
    drafter: Drafter | None = None  # instead of both, to measure with

    def __post_init__(self) -> None:
        if not isinstance(self.most, int) or not 1 <= self.most <= MOST_DRAFT:
            raise SpeculationError(
                f"`most` {self.most!r}: expected a whole number 1 to {MOST_DRAFT}"
            )
        if not isinstance(self.least, int) or not 0 <= self.least <= self.most:
            raise SpeculationError(f"`least` {self.least!r}: expected a whole number 0 to `most`")
        if not 0.0 <= self.p_min <= 1.0:
            raise SpeculationError(f"`p_min` {self.p_min}: out of range, expected 0 to 1")
        if self.draft is None and not self.lookup and self.drafter is None:
            raise SpeculationError("nothing guesses: give a draft model or `lookup`")


def check_draft(model: Model, draft: Model) -> None:
    """Raises SpeculationError unless the draft's tokens are the model's, and for one that cannot
    take up what was generated as it takes up prompts."""
    if not draft.hp.causal:
        raise SpeculationError(
            f"{draft.source.path}: a draft that reads prompts in both directions is not supported"
        )

    def refuse(what: str) -> None:
        raise SpeculationError(f"{draft.source.path}: {what}: a draft needs the same vocabulary")

    key = "tokenizer.ggml.tokens"
    ours, theirs = (
        KeyReader(m.source.metadata, m.source.path).strings(key, None) for m in (model, draft)
    )
    if ours is None or theirs is None:  # random weights
        n, n_draft = model.hp.n_vocab, draft.hp.n_vocab
        if n != n_draft:
            refuse(f"{n_draft} tokens, {model.source.path} has {n}")
        return
    if len(ours) != len(theirs):
        refuse(f"{len(theirs)} tokens, {model.source.path} has {len(ours)}")
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            refuse(f"token {i} is {b!r}, {a!r} in {model.source.path}")
