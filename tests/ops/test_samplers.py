"""The host's samplers by hand, and beside the `sample` op."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from gguflow.engine.ops.sample import choose, penalize, uniform
from gguflow.engine.samplers import Candidates, Chain
from gguflow.engine.samplers.dry import breakers, dry_penalties, repeats
from gguflow.engine.samplers.mirostat import Mirostat
from gguflow.engine.sampling import N_HISTORY, SamplerError, SamplerSettings

OFF: dict[str, Any] = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
P = np.array([0.15, 0.5, 0.1, 0.25])  # descending: tokens 1, 3, 0, 2
LOG_P = np.log(P).astype(np.float32)


def left(logits: Any, ids: Sequence[int] = (), step: int = 0, **settings: Any) -> dict[int, float]:
    """What the samplers leave, with probabilities."""
    logits = np.asarray(logits, np.float32)
    c = Candidates(logits)
    t = Chain(SamplerSettings(**OFF | settings), len(logits), None).filter(c, list(ids), 0, step)
    weights = np.exp(c.logits.astype(np.float64) / t)
    return dict(zip(c.ids.tolist(), (weights / weights.sum()).tolist(), strict=True))


def test_plain_settings_choose_as_the_op_does() -> None:
    rng = np.random.default_rng(0)
    for i in range(400):
        n = int(rng.integers(2, 3000))
        logits = (rng.standard_normal(n) * rng.choice([0.5, 3, 8])).astype(np.float32)
        if i % 3 == 0:
            logits = np.round(logits)  # ties
        if i % 5 == 0:
            logits[rng.random(n) < 0.5] = -np.inf
            logits[0] = 1
        s = SamplerSettings(
            temperature=float(rng.choice([0, 0.5, 1, 2])), top_k=int(rng.choice([0, 1, 40, 5000])),
            top_p=float(rng.choice([1, 0.9, 0.5])), min_p=float(rng.choice([0, 0.05, 0.3])),
            repeat_penalty=float(rng.choice([1, 1.3, 0.7])),
            repeat_last_n=int(rng.choice([0, 5, 64, 256])),
        )  # fmt: skip
        assert s.is_plain
        ids = rng.integers(0, n, int(rng.integers(1, 400))).tolist()
        history = np.full(N_HISTORY, -1, np.int32)
        history[N_HISTORY - len(ids[-N_HISTORY:]) :] = ids[-N_HISTORY:]
        with np.errstate(all="ignore"):
            expected = choose(penalize(logits, s.vector(), history), s.vector(), uniform(i, 7))
        assert Chain(s, n, None).choose(logits, ids, i, 7) == expected


def test_frequency_and_presence() -> None:
    found = left([0, 0, 0, 0], [1, 1, 2], presence_penalty=0.5, frequency_penalty=0.25)
    weights = np.exp([0, -1, -0.75, 0])
    assert [found[i] for i in range(4)] == pytest.approx(weights / weights.sum(), rel=1e-6)
    # llama.cpp: the repeat penalty first, whose sign goes by the logit before.
    found = left([2, 2, -2, 2], [1, 2], repeat_penalty=2.0, presence_penalty=1.0)
    weights = np.exp([2, 0, -5, 2])
    assert [found[i] for i in range(4)] == pytest.approx(weights / weights.sum(), rel=1e-5)
    only = left([0, 0], [0, 1], presence_penalty=1.0, repeat_last_n=1)
    assert only[0] == pytest.approx(1 / (1 + math.exp(-1)), rel=1e-6)
    far = left([0, 0], [0, *[1] * 500], presence_penalty=1.0, repeat_last_n=-1)
    assert far[0] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        # Surprises 1.90, 0.69, 2.30, 1.39; entropy 1.21: token 3 is nearest, then 1, 0, 2.
        ({"typical_p": 0.2}, {3}),
        ({"typical_p": 0.3}, {3, 1}),
        ({"typical_p": 0.8}, {3, 1, 0}),
        ({"typical_p": 0.95}, {0, 1, 2, 3}),
        # Mean -1.5682, deviation 0.6015 of the logits; the largest is -0.6931.
        ({"top_n_sigma": 1.0}, {1}),
        ({"top_n_sigma": 1.2}, {1, 3}),
        ({"top_n_sigma": 2.1}, {1, 3, 0}),
        ({"top_n_sigma": 0.0}, {0, 1, 2, 3}),
        # Of those at or above the threshold only the last stays.
        ({"xtc_probability": 1.0, "xtc_threshold": 0.2}, {3, 0, 2}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.12}, {0, 2}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.45}, {0, 1, 2, 3}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.6}, {0, 1, 2, 3}),  # off
        ({"top_k": 2, "xtc_probability": 1.0, "xtc_threshold": 0.2}, {3}),
        ({"temperature": 0.0}, {1}),
        ({"temperature": 0.0, "xtc_probability": 1.0, "xtc_threshold": 0.2}, {3}),
        # A sampler that is not named does nothing; the order counts.
        ({"top_k": 1, "samplers": ["top_p"]}, {0, 1, 2, 3}),
        ({"top_k": 3, "top_p": 0.8, "samplers": ["top_k", "top_p"]}, {1, 3}),
        ({"top_k": 3, "top_p": 0.8, "samplers": ["top_p", "top_k"]}, {1, 3, 0}),
        ({"temperature": 9.0, "min_p": 0.4, "samplers": ["temperature", "min_p"]}, {0, 1, 2, 3}),
        ({"temperature": 9.0, "min_p": 0.4, "samplers": ["min_p", "temperature"]}, {1, 3}),
    ],
)  # fmt: skip
def test_filters(settings: Mapping[str, Any], tokens: set[int]) -> None:
    assert {*left(LOG_P, **settings)} == tokens


def test_xtc_happens_with_its_probability() -> None:
    cut = [
        len(left(LOG_P, step=i, xtc_probability=0.3, xtc_threshold=0.2)) < 4 for i in range(2000)
    ]
    assert abs(sum(cut) - 600) < 4 * math.sqrt(2000 * 0.3 * 0.7)


def test_dynamic_temperature_goes_by_entropy() -> None:
    flat = left([1, 1, 1, 1], temperature=1.0, dynatemp_range=0.5)
    assert flat == pytest.approx({i: 0.25 for i in range(4)})
    entropy = -(P * np.log(P)).sum() / math.log(4)
    t = 0.5 + 1.0 * entropy**2
    expected = P ** (1 / t) / (P ** (1 / t)).sum()
    found = left(LOG_P, temperature=1.0, dynatemp_range=0.5, dynatemp_exponent=2.0)
    assert [found[i] for i in range(4)] == pytest.approx(expected, rel=1e-5)


def test_temperature_divides_where_it_stands() -> None:
    """The penalty after it goes by the divided logit."""
    found = left([4, 0], [0], temperature=2.0, repeat_penalty=2.0,
                 samplers=["temperature", "penalties"])  # fmt: skip
    assert found[0] == pytest.approx(1 / (1 + math.exp(-1)), rel=1e-6)


# -- dry -------------------------------------------------------------------------------------------


def test_repeats_are_the_longest_common_ends() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        ids = rng.integers(0, 3, int(rng.integers(1, 30))).tolist()
        expected = [0] * len(ids)
        for i in range(1, len(ids)):
            while expected[i] + i < len(ids) and ids[-1 - expected[i]] == ids[-1 - expected[i] - i]:
                expected[i] += 1
        limit = int(rng.integers(1, 30))
        assert repeats(ids, limit)[1:] == [min(n, limit) for n in expected][1:]


@pytest.mark.parametrize(
    ("ids", "at", "changes", "expected"),
    [
        # a b c c b c y a b c: after "a b c" came c, after "b c" y, after "c" b.
        ([1, 2, 3, 3, 2, 3, 9, 1, 2, 3], {}, {}, {3: 2.0, 9: 1.0}),
        ([1, 2, 3, 3, 2, 3, 9, 1, 2, 3], {}, {"dry_allowed_length": 1}, {3: 4.0, 9: 2.0, 2: 1.0}),
        ([1, 2, 3, 3, 2, 3, 9, 1, 2, 3], {}, {"dry_penalty_last_n": 6}, {9: 1.0}),
        ([1, 2, 3, 3, 2, 3, 9, 1, 2, 3], {9: [()]}, {}, {3: 2.0}),  # a breaker is not penalized
        ([1, 2, 3, 3, 2, 3, 9, 1, 2, 3], {1: [()]}, {}, {3: 1.0, 9: 1.0}),  # "b c" since then
        ([1, 2, 3, 3, 2, 3, 9, 1, 2, 3], {2: [()]}, {}, {}),
        ([1, 2, 3, 3, 2, 3, 9, 1, 2, 3], {2: [(3,)]}, {}, {}),  # "b c" together is one
        ([1, 2, 3, 3, 2, 3, 9, 1, 2, 3], {2: [(4,)]}, {}, {3: 2.0, 9: 1.0}),
        ([1, 2], {}, {}, {}),
    ],
)  # fmt: skip
def test_dry(
    ids: list[int], at: dict[int, list[tuple[int, ...]]], changes: dict[str, Any],
    expected: dict[int, float],
) -> None:  # fmt: skip
    s = SamplerSettings(dry_multiplier=1.0, dry_base=2.0, **changes)
    assert dry_penalties(s, ids, at) == expected


def test_dry_breakers_of_a_vocabulary() -> None:
    pieces = [b"a", b"b", b"ab", b"xa", b"aba", b"c", b"xabx"]

    def encode(text: str) -> list[int]:
        return [pieces.index(c.encode()) for c in text]

    assert breakers(["ab"], pieces, encode) == {
        0: [(1,)], 2: [()], 3: [(1,)], 4: [()], 6: [()],
    }  # fmt: skip
    assert breakers(["abc", "b"], pieces, encode) == {
        0: [(1, 5)], 1: [()], 2: [(5,), ()], 3: [(1, 5)], 4: [(1, 5), ()], 6: [()],
    }  # fmt: skip


# -- mirostat --------------------------------------------------------------------------------------


def test_mirostat_2_cuts_by_surprise_and_learns() -> None:
    s = SamplerSettings(**OFF | {"mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.5})
    m, c = Mirostat(s, 4), Candidates(LOG_P)
    m.cut(c)  # mu 2 bits: 0.25 is exactly 2
    assert c.ids.tolist()[:1] == [1] and set(c.ids.tolist()) <= {1, 3}
    c = Candidates(np.log([0.6, 0.3, 0.1]).astype(np.float32))
    m = Mirostat(s, 3)
    m.cut(c)
    assert c.ids.tolist() == [0, 1]
    m.observe(c, 1)  # a third of what is left: log2(3) bits
    assert m.mu == pytest.approx(2 - 0.5 * (math.log2(3) - 1), rel=1e-6)


def test_mirostat_1_keeps_k_by_zipf() -> None:
    s = SamplerSettings(**OFF | {"mirostat": 1, "mirostat_tau": 2.0})
    logits = -1.5 * np.log(np.arange(1, 1001)).astype(np.float32)  # exponent 1.5 exactly
    m, c = Mirostat(s, 1000), Candidates(logits)
    m.cut(c)
    k = (0.5 * 2.0**4 / (1 - 1000.0**-0.5)) ** (1 / 1.5)
    assert len(c) == int(k)


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        ({}, True),
        ({"presence_penalty": 0.1}, False),
        ({"presence_penalty": 0.1, "repeat_last_n": 0}, True),
        ({"repeat_penalty": 1.1}, True),
        ({"repeat_penalty": 1.1, "repeat_last_n": 257}, False),
        ({"repeat_penalty": 1.1, "repeat_last_n": -1}, False),
        ({"repeat_last_n": -1}, True),
        ({"dry_multiplier": 0.8}, False),
        ({"dry_multiplier": 0.8, "dry_penalty_last_n": 0}, True),
        ({"samplers": ["top-k", "temp"]}, True),
        ({"samplers": ["temp", "top-k"]}, False),
        ({"mirostat": 2}, False),
        ({"dynatemp_range": 0.1}, False),
        ({"xtc_probability": 0.1}, False),
        ({"xtc_probability": 0.1, "xtc_threshold": 0.7}, True),
    ],
)
def test_what_the_op_does_by_itself(settings: dict[str, Any], plain: bool) -> None:
    assert SamplerSettings(**settings).is_plain == plain


def test_a_sampler_that_is_not_named_is_off_for_the_op() -> None:
    s = SamplerSettings(samplers=["top_k"], temperature=0.3, top_k=7, repeat_penalty=2.0)
    assert s.vector().tolist() == [1, 7, 1, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"temperature": None}, "`temperature` None: expected a number"),
        ({"temperature": "1"}, "`temperature` '1': expected a number"),
        ({"top_k": 1.5}, "`top_k` 1.5: expected a whole number"),
        ({"top_k": True}, "`top_k` True"),
        ({"seed": "x"}, "`seed` 'x'"),
        ({"samplers": "top_k"}, "`samplers` 'top_k': expected a list"),
        ({"samplers": ["top_x"]}, "`samplers` 'top_x': expected some of"),
        ({"mirostat": 3}, "`mirostat` 3"),
        ({"typical_p": 0.0}, "`typical_p` 0.0"),
        ({"presence_penalty": math.inf}, "`presence_penalty` inf"),
        ({"xtc_threshold": 1.5}, "`xtc_threshold` 1.5"),
        ({"dry_sequence_breakers": [1]}, "`dry_sequence_breakers`"),
    ],
)
def test_settings_that_are_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(SamplerError, match=message.replace("(", r"\(")):
        SamplerSettings(**bad)
