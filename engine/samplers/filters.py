"""Samplers that leave out candidates or change their logits, each as llama.cpp defines it.

Every function takes the candidates and the settings of a request; what it draws on besides is an
argument. Arithmetic is float32 in the order written, exponentials are those of the `sample` op.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gguflow.engine.ops.sample import exp32
from gguflow.engine.sampling import SamplerSettings

from .candidates import Candidates


def last(ids: Sequence[int], n: int) -> Sequence[int]:
    """The last n tokens, all of them for a negative n."""
    return ids if n < 0 else ids[max(0, len(ids) - n) :]


def penalties(c: Candidates, s: SamplerSettings, ids: Sequence[int]) -> None:
    """Tokens of the last repeat_last_n made less likely: a logit above zero divided by the repeat
    penalty, another multiplied; then less frequency_penalty for every time, presence_penalty once.
    """
    counts = Counter(last(ids, s.repeat_last_n))
    at = _places(c, list(counts))
    found, times = c.ids[at], np.array([counts[i] for i in c.ids[at].tolist()], np.float32)
    if not len(found):
        return
    repeat, logits = np.float32(s.repeat_penalty), c.logits[at]
    logits = np.where(logits > 0, logits / repeat, logits * repeat)
    if s.frequency_penalty or s.presence_penalty:
        logits -= times * np.float32(s.frequency_penalty) + np.float32(s.presence_penalty)
    changed = c.logits.copy()
    changed[at] = logits
    c.change(changed)


def _places(c: Candidates, tokens: Sequence[int]) -> np.ndarray:
    """Where those of some tokens that are still candidates stand."""
    return np.flatnonzero(np.isin(c.ids, np.array(tokens, np.int64)))


def subtract(c: Candidates, amounts: dict[int, float]) -> None:
    """Lower the logits of some tokens."""
    at = _places(c, list(amounts))
    changed = c.logits.copy()
    changed[at] -= np.array([amounts[i] for i in c.ids[at].tolist()], np.float32)
    c.change(changed)


def top_n_sigma(c: Candidates, s: SamplerSettings) -> None:
    """Those within so many standard deviations of the largest logit (Tang et al. 2024)."""
    if len(c) <= 1:
        return
    finite = c.logits[np.isfinite(c.logits)].astype(np.float64)
    if len(finite):
        c.keep(c.logits >= finite.max() - s.top_n_sigma * finite.std())


def top_k(c: Candidates, s: SamplerSettings) -> None:
    """The k largest."""
    c.keep_largest(s.top_k)


def typ_p(c: Candidates, s: SamplerSettings) -> None:
    """Those whose surprise is nearest to the expected one, up to a sum of probabilities (Meister et
    al. 2022)."""
    c.sort()
    p, surprise = c.probabilities(), c.surprises()
    entropy = np.cumsum(np.where(p > 0, p * surprise, 0), dtype=np.float32)[-1]
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    sums = np.cumsum(p[order], dtype=np.float32)
    above = sums > np.float32(s.typical_p)
    n = int(np.argmax(above)) + 1 if above.any() else len(order)
    c.keep(np.sort(order[:n]))  # still sorted by logit


def top_p(c: Candidates, s: SamplerSettings) -> None:
    """The largest ones, up to a sum of probabilities (Holtzman et al. 2019)."""
    c.sort()
    sums = np.cumsum(exp32(c.logits - c.logits[0]), dtype=np.float32)
    c.keep(slice(int(np.argmax(sums >= np.float32(s.top_p) * sums[-1])) + 1))


def min_p(c: Candidates, s: SamplerSettings) -> None:
    """Those with at least so much of the largest one's probability."""
    c.sort()
    n = np.count_nonzero(exp32(c.logits - c.logits[0]) >= np.float32(s.min_p))
    c.keep(slice(max(1, int(n))))


def xtc(c: Candidates, s: SamplerSettings, u: np.float32) -> None:
    """With some probability, all above a threshold but the least likely of them are left out."""
    if len(c) < 2 or u > np.float32(s.xtc_probability):
        return
    c.sort()
    n = int(np.count_nonzero(c.probabilities() >= np.float32(s.xtc_threshold)))
    c.keep(slice(max(0, n - 1), None))


def dynamic_temperature(c: Candidates, s: SamplerSettings) -> float:
    """The temperature for these candidates: within dynatemp_range of the setting, by their
    entropy."""
    least, most = max(0.0, s.temperature - s.dynatemp_range), s.temperature + s.dynatemp_range
    c.sort()
    p = c.probabilities()
    p = p[p > 0].astype(np.float64)
    normalized = float(-(p * np.log(p)).sum() / np.log(len(c)))
    return least + (most - least) * max(0.0, normalized) ** s.dynatemp_exponent
