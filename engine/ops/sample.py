"""sample: next tokens from their logits, on the device, the same on every backend to the bit.

Every row of logits has settings, a generator and a history of its own.

Everything below is IEEE arithmetic in the order written: float32 (round to nearest, no fused
multiply-add) unless said otherwise. So numpy, C++ and CUDA choose the same token.

Inputs. logits l [n_vocab], finite or -inf, at least one finite. settings: temp, top_k, top_p,
min_p, repeat_penalty, repeat_last_n, two reserved. rng: seed, step as int64, their bits read as
uint64. history: token ids, newest last; an id outside [0, n_vocab), such as -1, is an empty place.

1. Penalty, off when repeat_penalty == 1 or n == 0, with n = int(repeat_last_n), truncated. Each
   distinct token t among the last n places of the history (n < 0 or n > h: all of it):
   l[t] = l[t] / repeat_penalty if l[t] > 0, else l[t] * repeat_penalty.
2. temp <= 0: the answer is the largest l, the lowest id on ties. Otherwise the candidates are all
   tokens by descending l, then ascending id; c is their number and steps 3 to 5 lower it.
3. top_k: k = int(top_k), truncated. k <= 0 is off; else c = min(c, k).
4. top_p, off when top_p >= 1: w[i] = exp32(l[i] - l[0]); sum[i] = sum[i-1] + w[i]; c becomes the
   first i + 1 with sum[i] >= top_p * sum[c-1], which is 1 when top_p <= 0.
5. min_p, off when min_p <= 0: c becomes the number of candidates with exp32(l[i] - l[0]) >= min_p,
   which are the first ones; at least 1.
6. Draw: w[i] = exp32((l[i] - l[0]) / temp), summed in order as in 4; u from the generator; the
   answer is the first i < c with sum[i] > u * sum[c-1], or c - 1 if rounding left none.

exp32(x), x <= 0: 0 if x < -87. Else n = rint(x * 1.44269504f) (ties to even);
r = (x - n * 0.693359375f) - n * -2.12194440e-4f; then with Horner's rule
p = ((((1.9875691500e-4f r + 1.3981999507e-3f) r + 8.3334519073e-3f) r + 4.1665795894e-2f) r
+ 1.6666665459e-1f) r + 5.0000001201e-1f; y = (p * (r * r) + r) + 1; the result is y * 2^n, where
2^n is the float32 with bits (n + 127) << 23. The polynomial is Cephes' expf (Moshier).

Generator: splitmix64 (Steele, Lea and Flood 2014) at `step + 1` steps from `seed`, in uint64:
z = seed + (step + 1) * 0x9E3779B97F4A7C15; z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
z = (z ^ z >> 27) * 0x94D049BB133111EB; z = z ^ z >> 31; u = (z >> 40) * 2^-24 as float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, I32, I64, Case, DType, Operand, OpSpec, Shape, Tensor
from ._common import rows_dense

_MASK = (1 << 64) - 1
_POLY = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
         5.0000001201e-1)  # fmt: skip


def exp32(x: np.ndarray) -> np.ndarray:
    """exp of float32 values <= 0 as the module's text defines it, to the bit."""
    f = np.float32
    inside = x >= f(-87)
    x = np.where(inside, x, f(0))
    n = np.rint(x * f(1.44269504))
    r = (x - n * f(0.693359375)) - n * f(-2.12194440e-4)
    p = np.full_like(x, f(_POLY[0]))
    for c in _POLY[1:]:
        p = p * r + f(c)
    y = (p * (r * r) + r) + f(1)
    power = ((n.astype(np.int32) + 127) << 23).view(np.float32)
    return np.where(inside, y * power, f(0))


def uniform(seed: int, step: int) -> np.float32:
    """The number in [0, 1) that belongs to (seed, step); both are read modulo 2^64."""
    z = (seed + (step + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    return np.float32((z >> 40) * 2.0**-24)


def penalize(l: np.ndarray, settings: np.ndarray, history: np.ndarray) -> np.ndarray:  # noqa: E741
    """Step 1: the logits [n_vocab] with recent tokens made less likely."""
    penalty, n = settings[4], int(settings[5])
    if penalty == 1 or n == 0:
        return l
    recent = history[-n:] if n > 0 else history
    recent = np.unique(recent[(recent >= 0) & (recent < len(l))])
    out = l.copy()
    out[recent] = np.where(l[recent] > 0, l[recent] / penalty, l[recent] * penalty)
    return out


def choose(l: np.ndarray, settings: np.ndarray, u: np.float32) -> int:  # noqa: E741
    """Steps 2 to 6: the token that `u` picks from the logits [n_vocab]."""
    temp, k, top_p, min_p = settings[0], int(settings[1]), settings[2], settings[3]
    if temp <= 0:
        return int(np.argmax(l))
    order = np.argsort(-l, kind="stable")
    if k > 0:
        order = order[:k]
    below = l[order] - l[order[0]]
    if top_p < 1:
        sums = np.cumsum(exp32(below), dtype=np.float32)
        below = below[: np.argmax(sums >= top_p * sums[-1]) + 1]
    if min_p > 0:
        below = below[: max(1, np.count_nonzero(exp32(below) >= min_p))]
    sums = np.cumsum(exp32(below / temp), dtype=np.float32)
    above = sums > u * sums[-1]
    return int(order[np.argmax(above) if above.any() else len(sums) - 1])


class Sample(OpSpec):
    name = "sample"
    doc = (
        "The next token: penalty, top_k, top_p, min_p, temperature, draw; temp <= 0 takes the "
        "largest. The random number is a function of (seed, step); every backend gives the same "
        "token."
    )
    operands = (
        "logits f32 [n, n_vocab]",
        "settings f32 [n, 8]: temp, top_k, top_p, min_p, repeat_penalty, repeat_last_n, 0, 0",
        "rng i64 [n, 2]: seed, step",
        "history i32 [n, h], newest last, -1 where empty",
    )
    rows_of = 0
    cost = "10 a logit"
    tolerance = 0.0

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        logits, settings, rng, history = srcs
        if logits.dtype is not F32 or len(logits.shape) != 2:
            raise self.fail("logits must be f32 [n, n_vocab]", *srcs)
        n = logits.shape[0]
        if settings.dtype is not F32 or settings.shape != (n, 8):
            raise self.fail(f"settings must be f32 [{n}, 8]", *srcs)
        if rng.dtype is not I64 or rng.shape != (n, 2):
            raise self.fail(f"rng must be i64 [{n}, 2]", *srcs)
        if history.dtype is not I32 or len(history.shape) != 2 or history.shape[0] != n:
            raise self.fail(f"history must be i32 [{n}, h]", *srcs)
        if logits.shape[1] == 0 or not all(rows_dense(s) for s in srcs):
            raise self.fail("rows must be dense, and those of logits not empty", *srcs)
        return I32, (n,)

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        return np.array([self._row(*row) for row in zip(*srcs, strict=True)], np.int32)

    def _row(self, logits: Any, settings: Any, rng: Any, history: Any) -> int:
        with np.errstate(all="ignore"):
            penalized = penalize(logits, settings, history)
            return choose(penalized, settings, uniform(int(rng[0]), int(rng[1])))

    def flops(self, out: Tensor) -> int:
        return 10 * out.live_srcs()[0].size

    def cases(self) -> Iterator[Case]:
        def case(note: str, *settings: float, n: int = 172, rng: tuple[int, int] = (42, 0),
                 history: Any = -1, logits: Any = None) -> Case:  # fmt: skip
            full = (*settings, *(0.8, 0, 1, 0, 1, 0)[len(settings) :], 0, 0)
            h = 1 if np.isscalar(history) else len(history)
            return Case(
                (
                    Operand((1, n), data=logits),
                    Operand((1, 8), data=full),
                    Operand((1, 2), "i64", rng),
                    Operand((1, h), "i32", history),
                ),
                note=note,
            )

        wide = lambda rng, shape: rng.standard_normal(shape) * 5  # noqa: E731
        few = lambda rng, shape: rng.integers(0, 3, shape)  # noqa: E731
        tail = lambda rng, shape: np.where(np.arange(shape[1]) < 3, 1.0, -np.inf)  # noqa: E731
        yield case("one", n=1)
        yield case("greedy", 0.0, logits=wide)
        yield case("greedy, ties", 0.0, logits=few)
        yield case("greedy below zero", -1.0)
        for step in range(8):
            yield case(f"plain, step {step}", 1.0, rng=(7, step))
        for step in range(4):
            yield case(f"top_k {step}", 0.8, 40, rng=(1, step))
            yield case(f"top_p {step}", 0.8, 0, 0.9, rng=(2, step))
            yield case(f"min_p {step}", 0.8, 0, 1, 0.1, rng=(3, step))
            yield case(f"all {step}", 0.8, 40, 0.95, 0.05, 1.3, -1, rng=(4, step), logits=wide,
                       history=[5, 5, -1, 171, 3, 172])  # fmt: skip
            yield case(f"ties {step}", 1.0, 7, 0.8, rng=(5, step), logits=few)
        yield case("top_k beyond n", 0.8, 1000)
        yield case("top_p nought", 0.8, 0, 0.0)
        yield case("min_p above one", 0.8, 0, 1, 1.5)
        yield case("penalty, greedy", 0.0, 0, 1, 0, 2.0, 3, logits=[range(-86, 86)],
                   history=[171, 170, 169, 168])  # fmt: skip
        yield case("penalty off", 0.0, 0, 1, 0, 2.0, 0, logits=[range(-86, 86)], history=[171])
        yield case("penalty, long window", 0.0, 0, 1, 0, 1.5, 64, logits=wide, history=range(172))
        yield case("seed -1", 0.8, rng=(-1, 0))
        yield case("largest seed", 0.8, rng=(2**63 - 1, 2**40))
        for step in range(3):
            yield case(f"masked {step}", 1.0, logits=tail, rng=(6, step))
            yield case(f"hot {step}", 100.0, 0, 0.999, rng=(8, step), n=32003, logits=wide)
            yield case(f"cold {step}", 0.05, 40, rng=(9, step), logits=wide)
        # Rows that ask for different things: greedy, a small top_k, everything, penalties.
        rows = (
            (0.0, 0, 1, 0, 1, 0),
            (0.8, 40, 0.95, 0.05, 1, 0),
            (1.0, 0, 1, 0, 1, 0),
            (0.0, 0, 1, 0, 2.0, 3),
            (0.7, 0, 0.9, 0.0, 1.3, -1),
            (1.5, 5, 1, 0.1, 1.1, 2),
        )
        for n, vocab in ((6, 172), (5, 32003), (1, 2048), (37, 1025)):
            yield Case(
                (
                    Operand((n, vocab), data=wide),
                    Operand((n, 8), data=[(*rows[i % 6], 0, 0) for i in range(n)]),
                    Operand((n, 2), "i64", [(7 * i, i) for i in range(n)]),
                    Operand((n, 4), "i32", lambda rng, s: rng.integers(-1, 172, s)),
                ),
                note=f"{n} rows of {vocab}",
            )
        yield Case(
            (
                Operand((3, 64), data=wide, pad=(1, 5)),
                Operand((3, 8), data=(0.8, *[0] * 7), pad=(1, 1)),
                Operand((3, 2), "i64", [(1, 2), (3, 4), (5, 6)], pad=(1, 1)),
                Operand((3, 9), "i32", -1, pad=(1, 3)),
            ),
            note="views",
        )
