"""How good a model is: perplexity on a text, and KL divergence between two models.

Both follow llama.cpp's `llama-perplexity`, so figures compare: the text is cut into windows of
n_ctx tokens, each starts with BOS if the vocabulary asks for it, and only the second half of each
window is scored, so that every scored token has at least half a window of context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gguflow.engine.session import Session


class TextTooShort(ValueError):
    """The text does not fill one window."""


@dataclass
class Perplexity:
    """exp(mean negative log-likelihood). error: one standard error of the perplexity."""

    value: float
    error: float
    nll: float  # nats a token
    n_tokens: int  # scored


@dataclass
class Divergence:
    """Of the distributions over the next token, a model against its reference."""

    mean_kl: float  # nats
    p99_kl: float
    same_top: float  # share of positions with the same most likely token


def windows(ids: Sequence[int], n_ctx: int, bos: int | None) -> list[list[int]]:
    """Whole windows of n_ctx tokens; the first of each is BOS when there is one.

    Raises TextTooShort when there is not one.
    """
    if len(ids) < n_ctx:
        raise TextTooShort(f"the text has {len(ids)} tokens, one window needs {n_ctx}")
    out = [list(ids[i : i + n_ctx]) for i in range(0, len(ids) - n_ctx + 1, n_ctx)]
    if bos is not None:
        for w in out:
            w[0] = bos
    return out


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float32 [n, n_vocab] -> float32 log probabilities."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def scored(window: Sequence[int], logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log probabilities at the scored positions, and the tokens that came next there."""
    first = len(window) // 2
    return log_softmax(logits[first:-1]), np.asarray(window[first + 1 :])


def perplexity(
    session: Session,
    chunks: Sequence[Sequence[int]],
    each: Callable[[int, np.ndarray], None] | None = None,
) -> Perplexity:
    """Perplexity over windows. each(i, log_probs) sees every window's scored distributions."""
    losses = []
    for i, window in enumerate(chunks):
        log_probs, targets = scored(window, session.logits(window))
        losses.append(-log_probs[np.arange(len(targets)), targets].astype(np.float64))
        if each:
            each(i, log_probs)
    loss = np.concatenate(losses)
    value = float(np.exp(loss.mean()))
    error = value * float(loss.std(ddof=1) / np.sqrt(len(loss))) if len(loss) > 1 else 0.0
    return Perplexity(value, error, float(loss.mean()), len(loss))


class DivergenceMeter:
    """Collects KL(reference || model) window by window: pass `add` as `perplexity`'s `each`."""

    def __init__(self, reference: Sequence[np.ndarray]) -> None:
        self.reference = reference
        self._kl: list[np.ndarray] = []
        self._same: list[np.ndarray] = []

    def add(self, i: int, log_probs: np.ndarray) -> None:
        ref = self.reference[i]
        self._kl.append((np.exp(ref) * (ref - log_probs)).sum(-1, dtype=np.float64))
        self._same.append(ref.argmax(-1) == log_probs.argmax(-1))

    def result(self) -> Divergence:
        kl, same = np.concatenate(self._kl), np.concatenate(self._same)
        return Divergence(float(kl.mean()), float(np.percentile(kl, 99)), float(same.mean()))
