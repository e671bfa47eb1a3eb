"""How good a model is: perplexity on a text, and KL divergence from a reference model.

Both follow llama.cpp's `llama-perplexity`, so figures compare: the text is cut into windows of
n_ctx tokens, each starts with BOS if the vocabulary asks for it, and only the second half of each
window is scored, so that every scored token has at least half a window of context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod

import numpy as np

from gguflow.engine.dataclass import dataclass
from gguflow.engine.load import ModelSource
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.session import Session
from gguflow.models.base import ModelError

BLOCK_BYTES = 16 << 20  # of logits in memory at a time, for each model
# Models in memory at once, besides the reference: enough for every type of a small model in one
# go, and one type after another of a large one, the reference computed anew for each.
GROUP_BYTES = 2 << 30


class TextTooShort(ValueError):
    """The text does not fill one window."""


@dataclass(frozen=True)
class Perplexity:
    """exp(mean negative log-likelihood). error: one standard error of the perplexity."""

    value: float
    error: float
    nll: float  # nats a token
    n_tokens: int  # scored


@dataclass(frozen=True)
class Divergence:
    """Of the distributions over the next token, a model against its reference."""

    mean_kl: float  # nats
    p99_kl: float
    same_top: float  # share of positions with the same most likely token


@dataclass(frozen=True)
class Score:
    """divergence: None for the reference itself."""

    perplexity: Perplexity
    divergence: Divergence | None


@dataclass(frozen=True)
class Row:
    """A model of a comparison. n_bytes: of its weights; n_weights: numbers they stand for."""

    name: str
    n_bytes: int
    n_weights: int
    score: Score


def windows(ids: Sequence[int], n_ctx: int, bos: int | None) -> list[list[int]]:
    """Whole windows of n_ctx tokens; the first of each is BOS when there is one.

    Raises TextTooShort when the text does not fill one.
    """
    if len(ids) < n_ctx:
        raise TextTooShort(f"the text has {len(ids)} tokens, one window needs {n_ctx}")
    out = [list(ids[i : i + n_ctx]) for i in range(0, len(ids) - n_ctx + 1, n_ctx)]
    if bos is not None:
        for w in out:
            w[0] = bos
    return out


def evaluate(
    sessions: Sequence[Session],
    chunks: Sequence[Sequence[int]],
    each: Callable[[int, float], None] | None = None,
) -> list[Score]:
    """Score models over windows; the first one is the reference of the others.

    All of them go through a window together, so that no distribution is kept for later: memory
    does not grow with the text or the vocabulary. Their vocabularies must be the same.
    each: called after every window with their number and the reference's perplexity so far.
    """
    meters = [_Meter() for _ in sessions]
    for i, window in enumerate(chunks):
        for blocks in zip(*(scored(s, window) for s in sessions), strict=True):
            reference = blocks[0][0]
            for meter, (log_probs, targets) in zip(meters, blocks, strict=True):
                meter.add(log_probs, targets, None if log_probs is reference else reference)
        if each:
            each(i + 1, meters[0].perplexity().value)
    return [m.score() for m in meters]


def compare(
    sources: Sequence[tuple[str, ModelSource]],
    options: Options,
    chunks: Sequence[Sequence[int]],
    each: Callable[[str, int, float], None] | None = None,
) -> list[Row]:
    """Load models and `evaluate` them; the first is the reference of the others.

    options: n_ctx must hold a window. each: as in `evaluate`, with the names of those at work.
    """
    reference = _session(sources[0][1], options)
    rows: list[Row] = []
    for group in _groups(sources[1:]):
        names = [sources[0][0], *(name for name, _ in group)]
        sessions = [reference, *(_session(source, options) for _, source in group)]
        report = each and partial(each, ", ".join(names[1:] or names))
        for name, session, score in zip(
            names, sessions, evaluate(sessions, chunks, report), strict=True
        ):
            if session is not reference or not rows:
                rows.append(_row(name, session.model.source, score))
    return rows


def _session(source: ModelSource, options: Options) -> Session:
    model = Model(source, options)
    model.load_weights()
    return model.session


def _groups(
    sources: Sequence[tuple[str, ModelSource]],
) -> Iterator[list[tuple[str, ModelSource]]]:
    """Runs of sources of GROUP_BYTES or a single one; one empty run when there are no sources."""
    group: list[tuple[str, ModelSource]] = []
    for name, source in sources:
        if group and sum(s.n_bytes for _, s in group) + source.n_bytes > GROUP_BYTES:
            yield group
            group = []
        group.append((name, source))
    yield group


def _row(name: str, source: ModelSource, score: Score) -> Row:
    weights = source.weights.values()
    n_bytes = sum(w.nbytes for w in weights)
    return Row(name, n_bytes, sum(prod(w.shape) for w in weights), score)


def scored(session: Session, window: Sequence[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Runs a window; yields it in blocks: log probabilities float32 [n, n_vocab] at the scored
    positions, and the tokens that came next there, int64 [n]."""
    session.model.check_ids(window)
    if not session.model.hp.causal:
        raise ModelError(
            f"{session.model.source.path}: attention.causal is false: no perplexity, as the tokens "
            "of a text have seen those that they would predict"
        )
    session.rewind(0)
    first, n = len(window) // 2, len(window) - 1  # the last token predicts nothing in the window
    step = max(
        1, min(BLOCK_BYTES // (4 * session.model.hp.n_vocab), session.model.options.n_ubatch)
    )
    if first:
        session.prefill(window[:first], None, "none")
    for i in range(first, n, step):
        part = window[i : min(i + step, n)]
        logits = session.step(part, "all", prompt=True)[0]
        yield log_softmax(logits), np.asarray(window[i + 1 : i + 1 + len(part)])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float32 [n, n_vocab] -> float32 log probabilities."""
    shifted = logits - logits.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


class _Meter:
    """Collects what one model says, position by position."""

    def __init__(self) -> None:
        self._loss: list[np.ndarray] = []
        self._kl: list[np.ndarray] = []
        self._same: list[np.ndarray] = []

    def add(self, log_probs: np.ndarray, targets: np.ndarray, ref: np.ndarray | None) -> None:
        self._loss.append(-log_probs[np.arange(len(targets)), targets].astype(np.float64))
        if ref is not None:
            self._kl.append((np.exp(ref) * (ref - log_probs)).sum(-1, dtype=np.float64))
            self._same.append(ref.argmax(-1) == log_probs.argmax(-1))

    def perplexity(self) -> Perplexity:
        loss = np.concatenate(self._loss)
        value = float(np.exp(loss.mean()))
        # The error of exp(x) is exp(x) times the error of x, the standard error of the mean loss.
        error = value * float(loss.std(ddof=1) / np.sqrt(len(loss))) if len(loss) > 1 else 0.0
        return Perplexity(value, error, float(loss.mean()), len(loss))

    def score(self) -> Score:
        divergence = None
        if self._kl:
            kl, same = np.concatenate(self._kl), np.concatenate(self._same)
            divergence = Divergence(
                float(kl.mean()), float(np.percentile(kl, 99)), float(same.mean())
            )
        return Score(self.perplexity(), divergence)
