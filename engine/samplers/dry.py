"""DRY, "don't repeat yourself": tokens that would go on with something repeated are made less
likely, the more the longer it is (p-e-w's sampler, as llama.cpp defines it)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from gguflow.engine.sampling import SamplerSettings

from .filters import last

MOST_CHARS, MOST_TOKENS = 40, 20  # of a sequence breaker
FLOAT_MAX_LOG = 88.7228391

# Token -> what may follow it to make a breaker; () where the token holds a whole one.
Breakers = Mapping[int, Sequence[tuple[int, ...]]]


def breakers(
    texts: Sequence[str], pieces: Sequence[bytes], encode: Callable[[str], Sequence[int]]
) -> Breakers:
    """The breakers of a vocabulary. pieces: the bytes of every token. encode: tokens of a text."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for text in texts:
        word = text.encode("utf-8", "replace")[:MOST_CHARS]
        if not word:
            continue
        for token, piece in enumerate(pieces):
            if word in piece:
                tails: set[tuple[int, ...]] = {()}
            elif word[:1] in piece:
                tails = {_tail(word, n, encode) for n in _overlaps(piece, word)}
            else:
                continue
            known = found.setdefault(token, [])
            known += [tail for tail in sorted(tails) if tail not in known]
    return {token: tails for token, tails in found.items() if tails}


def _overlaps(piece: bytes, word: bytes) -> list[int]:
    """How many bytes of `word` a piece may end with."""
    return [n for n in range(1, min(len(piece), len(word)) + 1) if piece.endswith(word[:n])]


def _tail(word: bytes, n: int, encode: Callable[[str], Sequence[int]]) -> tuple[int, ...]:
    return tuple(encode(word[n:].decode("utf-8", "replace"))[:MOST_TOKENS])


def repeats(ids: Sequence[int], limit: int) -> list[int]:
    """For every place i >= 1 counted from the end: how many tokens that end there are also the last
    ones, at most `limit`. The Z-algorithm on the reversed sequence."""
    r = ids[::-1]
    n = len(r)
    z = [0] * n
    left = right = 0  # [left, right): what is known to equal a beginning
    for i in range(1, n):
        length = min(z[i - left], right - i) if i < right else 0
        while i + length < n and r[length] == r[i + length]:
            length += 1
        z[i] = length
        if i + length > right:
            left, right = i, i + length
    return [min(length, limit) for length in z]


def dry_penalties(s: SamplerSettings, ids: Sequence[int], at: Breakers) -> dict[int, float]:
    """What to take from the logits of tokens that would go on with a repetition."""
    recent = list(last(ids, s.dry_penalty_last_n))
    if len(recent) <= s.dry_allowed_length:
        return {}
    limit = _limit(recent, at)
    if limit < s.dry_allowed_length:
        return {}
    longest: dict[int, int] = {}
    n = len(recent)
    for i, length in enumerate(repeats(recent, limit)):
        if i and length >= s.dry_allowed_length:
            token = recent[n - i]  # what came after
            longest[token] = max(longest.get(token, 0), length)
    most = int(FLOAT_MAX_LOG / math.log(s.dry_base)) if s.dry_base > 1.000001 else 0
    out = {}
    for token, length in longest.items():
        if () in at.get(token, ()):
            continue
        exponent = length - s.dry_allowed_length
        out[token] = s.dry_multiplier * s.dry_base ** (min(exponent, most) if most else exponent)
    return out


def _limit(recent: Sequence[int], at: Breakers) -> int:
    """How long a repetition may be, by the nearest breaker."""
    n = len(recent)
    for i in range(n):
        tails = at.get(recent[n - 1 - i])
        if tails is None:
            continue
        lengths = [
            len(tail)
            for tail in tails
            if len(tail) <= i and tuple(recent[n - i : n - i + len(tail)]) == tail
        ]
        if lengths:
            return i - max(lengths)
    return n
