"""What a request asks of its next token beyond the `sample` op, done on the host.

In order: probabilities of the raw logits, `logit_bias`, the request's processor, the samplers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from gguflow.engine.dataclass import dataclass
from gguflow.engine.samplers import Chain
from gguflow.engine.samplers.candidates import LARGEST
from gguflow.engine.samplers.dry import Breakers, breakers

from .request import LogitsError, LogitsProcessor, Ranked, Request

if TYPE_CHECKING:
    from .scheduler import Batch


@dataclass(frozen=True)
class Choice:
    """A token, and what was asked for with it, as in `Token`."""

    id: int
    logprob: float | None = None
    top_logprobs: Ranked = ()


def check_extras(request: Request, n_vocab: int, causal: bool = True) -> None:
    """Raises ValueError or TypeError naming the field of a request that cannot be had. causal: as
    of the model."""
    if request.prompt_logprobs and not causal:
        raise ValueError(
            "prompt_logprobs: this model reads a prompt in both directions, where every token has "
            "seen the next one"
        )
    k = request.logprobs
    if k is not None and (not isinstance(k, Integral) or isinstance(k, bool)):
        raise TypeError(f"logprobs {k!r}: expected a whole number or None")
    if k is not None and not 0 <= k <= n_vocab:
        raise ValueError(f"logprobs {k}: expected 0 to {n_vocab}, the vocabulary")
    if request.processor is not None and not callable(request.processor):
        raise TypeError(f"processor {request.processor!r}: expected a function of ids and logits")
    check_bias(request.logit_bias, n_vocab)


def check_bias(bias: Mapping[int, float], n_vocab: int) -> None:
    """Raises ValueError or TypeError for a logit_bias that names no token or adds no number."""
    if not isinstance(bias, Mapping):
        raise TypeError(f"logit_bias {bias!r}: expected a mapping of token ids to numbers")
    for token, value in bias.items():
        if not isinstance(token, Integral) or not 0 <= token < n_vocab:
            raise ValueError(f"logit_bias {token!r}: outside the vocabulary of {n_vocab}")
        if not isinstance(value, Real) or not value < math.inf:
            raise ValueError(f"logit_bias {token}: {value!r}: expected a number or -inf")


def ranked(logits: np.ndarray, token: int, k: int) -> tuple[float, Ranked]:
    """The logarithm of a token's probability, and the k most likely tokens with theirs, equals by
    id. logits: f32 [n_vocab]."""
    finite = np.nan_to_num(logits, nan=-np.inf, posinf=LARGEST, neginf=-np.inf)
    largest = finite.max().astype(np.float64)
    if np.isneginf(largest):
        raise LogitsError("the logits are not finite")
    total = largest + math.log(np.exp(finite - largest, dtype=np.float64).sum())
    top: np.ndarray = np.zeros(0, np.int64)
    if k:
        least = np.partition(finite, len(finite) - k)[len(finite) - k]
        top = np.flatnonzero(finite >= least)
        top = top[np.argsort(-finite[top], kind="stable")][:k]
    return (
        float(finite[token] - total),
        tuple(zip(top.tolist(), (finite[top] - total).tolist(), strict=True)),
    )


def prompt_logprobs(batch: Batch, logits: np.ndarray) -> list[int]:
    """What the rows of prompts say of the tokens after them, where that is asked for; returns where
    the rows are that tokens are chosen from. logits: f32 [n, n_vocab]."""
    at = [*range(len(batch.singles))]
    n_before = len(at)
    for job, n in batch.chunks:
        wanted, is_last = job.wants_rows, n == job.n_new
        if wanted:
            for i in range(min(n, job.n_prompt - 1 - job.n_rows)):
                place = job.n_rows + i + 1
                k = job.request.logprobs or 0
                job.prompt_logprobs[place] = ranked(logits[n_before + i], job.tokens[place], k)
        n_before += n if wanted else int(is_last)
        if is_last:
            at.append(n_before - 1)
    return at


@lru_cache(maxsize=8)
def breakers_of(tokenizer: Any, texts: tuple[str, ...]) -> Breakers:
    """Where dry's repetitions end in a vocabulary."""
    pieces = [tokenizer.piece(i) for i in range(tokenizer.n_vocab)]
    return breakers(texts, pieces, lambda text: tokenizer.encode(text, add_special=False))


class HostSampler:
    """Chooses the tokens of one request, in order.

    tokenizer: called for one where the settings need the texts of tokens.
    """

    def __init__(self, request: Request, seed: int, n_vocab: int, tokenizer: Any) -> None:
        settings = request.settings
        self._logprobs = request.logprobs
        self._processor: LogitsProcessor | None = request.processor
        self._seed = seed
        self._bias = (
            np.array([*request.logit_bias], np.int64),
            np.array([*request.logit_bias.values()], np.float32),
        )
        needs_text = "dry" in settings.chain
        at = breakers_of(tokenizer(), tuple(settings.dry_sequence_breakers)) if needs_text else None
        self._chain = Chain(settings, n_vocab, at)

    def choose(self, logits: np.ndarray, ids: Sequence[int], step: int) -> Choice:
        """The token after `ids`, the step-th to be generated, from its logits, f32 [n_vocab], which
        stay as they are. Raises LogitsError and whatever a processor does."""
        changed = logits.copy()
        where, bias = self._bias
        changed[where] += bias
        if self._processor is not None:
            self._processor(ids, changed)
        with np.errstate(invalid="ignore"):
            largest = np.nanmax(changed, initial=-np.inf)
        if np.isneginf(largest):
            what = "no token is left" if np.isfinite(logits).any() else "the logits are not finite"
            raise LogitsError(what)
        token = self._chain.choose(changed, ids, self._seed, step)
        if self._logprobs is None:
            return Choice(token)
        return Choice(token, *ranked(logits, token, self._logprobs))
