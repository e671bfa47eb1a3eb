"""Requests that ask for more than the `sample` op does, beside others that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stand_in_loop import install
from test_engine import PROMPT, is_clean, pad, run, text
from tiny_model import write_tiny

from gguflow.engine.model import Model
from gguflow.engine.sampling import GREEDY, SamplerSettings
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import EmbedRequest, LogitsError, Request

HOT = SamplerSettings(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=1)
RICH = replace(HOT, presence_penalty=0.5, frequency_penalty=0.2, typical_p=0.9, dry_multiplier=0.8,
               xtc_probability=0.5, top_n_sigma=2.0, dynatemp_range=0.5,
               repeat_last_n=-1)  # fmt: skip


def nothing(ids: Sequence[int], logits: np.ndarray) -> None:
    """A processor that changes nothing."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("m") / "m.gguf"
    return Model.load(write_tiny(path, gain=2.0, n_ctx_train=2304), n_threads=1)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


@pytest.mark.parametrize("settings", [GREEDY, HOT, replace(HOT, top_k=5, repeat_penalty=1.3)])
def test_the_host_chooses_what_the_op_chooses(model: Model, settings: SamplerSettings) -> None:
    plain = Request(PROMPT, 80, settings)
    for asked in (replace(plain, processor=nothing), replace(plain, logprobs=3)):
        engine = Engine(model, n_seqs=3)
        ids = [engine.add(plain), engine.add(asked), engine.add(plain)]
        found = run(engine)
        assert text(found[ids[0]]) == text(found[ids[1]]) == text(found[ids[2]])
        assert [c.id for c in model.new_session().choices(asked)] == text(found[ids[0]])


@pytest.mark.parametrize("kind", ["live rows", "padded, with loops"])
def test_text_does_not_depend_on_the_batch(
    model: Model, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    requests = [
        Request(PROMPT, 160, RICH),
        Request([7] * 90, 160, HOT),
        Request([7] * 90, 160, replace(HOT, mirostat=2, seed=4)),
        Request([9] * 70, 150, replace(HOT, mirostat=1, seed=5), logprobs=2),
        Request(PROMPT, 40, HOT, logit_bias={5: 3.0, 8: -np.inf}),
        Request([3] * 40, 50, replace(HOT, samplers=["temperature", "top_k", "dry"], top_k=9)),
    ]
    alone = [[c.id for c in model.new_session().choices(r)] for r in requests]
    if kind != "live rows":
        pad(monkeypatch)
        install(monkeypatch)
    # Few pages: sequences give theirs back and are computed again.
    engine = Engine(model.with_options(n_ubatch=64), n_seqs=6, n_cache=8 * 64)
    ids = [engine.add(r) for r in requests]
    found = run(engine)
    assert engine.stats.n_preempted > 0
    assert [text(found[i]) for i in ids] == alone
    assert 8 not in alone[4] and len({*map(tuple, alone)}) == 6
    assert is_clean(engine)


def test_logprobs_are_those_of_the_raw_logits(model: Model) -> None:
    request = Request(PROMPT, 6, replace(HOT, top_k=3), logit_bias={9: 2.0}, logprobs=4)
    engine = Engine(model, n_seqs=2)
    i = engine.add(request)
    engine.add(Request([4] * 30, 6, HOT))
    tokens = run(engine)[i]
    logits = model.logits([*PROMPT, *text(tokens)])
    for token in tokens:
        expected = log_softmax(logits[len(PROMPT) - 1 + token.index])
        assert token.logprob == pytest.approx(expected[token.id], abs=1e-6)
        ranked = np.argsort(-expected, kind="stable")[:4].tolist()
        assert [t for t, _ in token.top_logprobs] == ranked
        assert [p for _, p in token.top_logprobs] == pytest.approx(expected[ranked], abs=1e-6)
    everything = engine.add(replace(request, logprobs=96, max_tokens=1))
    (token,) = run(engine)[everything]
    assert sum(np.exp(p) for _, p in token.top_logprobs) == pytest.approx(1)
    none = engine.add(replace(request, logprobs=0, max_tokens=1))
    assert run(engine)[none][0].top_logprobs == () and token.logprob is not None


@pytest.mark.parametrize("n", [1, 2, 200])
@pytest.mark.parametrize("padded", [False, True])
def test_logprobs_of_a_prompt(
    model: Model, monkeypatch: pytest.MonkeyPatch, n: int, padded: bool
) -> None:
    if padded:
        pad(monkeypatch)
    ids = [1 + i * i % 90 for i in range(n)]
    engine = Engine(model.with_options(n_ubatch=64), n_seqs=3, n_cache=7 * 64)
    plain = Request([4] * 150, 60, HOT)
    first = engine.add(plain)
    asked = [engine.add(Request(ids, 3, HOT, logprobs=2, prompt_logprobs=True)) for _ in range(2)]
    found = run(engine)
    logits = model.logits(ids)
    for i in asked:
        given = found[i][0].prompt_logprobs
        assert len(given) == n and given[0] == (None, ())
        for place in range(1, n):
            expected = log_softmax(logits[place - 1])
            value, top = given[place]
            assert value == pytest.approx(expected[ids[place]], abs=1e-6)
            assert [t for t, _ in top] == np.argsort(-expected, kind="stable")[:2].tolist()
        assert found[i][1].prompt_logprobs == ()
        assert text(found[i]) == list(model.new_session().generate(ids, 3, HOT))
    assert text(found[first]) == list(model.new_session().generate(plain.ids, 60, HOT))


def test_a_processor_sees_every_token_in_order(model: Model) -> None:
    seen: list[list[int]] = []

    def odd(ids: Sequence[int], logits: np.ndarray) -> None:
        seen.append(list(ids))
        assert logits.dtype == np.float32 and logits.shape == (96,)
        logits[::2] = -np.inf

    engine = Engine(model, n_seqs=2)
    i = engine.add(Request(PROMPT, 20, HOT, processor=odd))
    made = text(run(engine)[i])
    assert len(made) == 20 and all(t % 2 for t in made)
    assert seen == [[*PROMPT, *made[:n]] for n in range(20)]


def test_what_a_processor_raises_ends_its_request_alone(model: Model) -> None:
    def fails(ids: Sequence[int], logits: np.ndarray) -> None:
        if len(ids) == len(PROMPT) + 4:
            raise RuntimeError("no grammar")

    def bans(ids: Sequence[int], logits: np.ndarray) -> None:
        logits[:] = -np.inf

    plain = Request(PROMPT, 20, HOT)
    engine = Engine(model, n_seqs=3)
    ids = [engine.add(replace(plain, processor=p)) for p in (fails, bans, None)]
    found = run(engine)
    failed, banned = found[ids[0]][-1], found[ids[1]][-1]
    assert (failed.finish, failed.id, failed.index) == ("error", None, 4)
    assert isinstance(failed.error, RuntimeError)
    assert banned.finish == "error" and isinstance(banned.error, LogitsError)
    assert "no token is left" in str(banned.error)
    assert len(text(found[ids[2]])) == 20 and is_clean(engine)
    with pytest.raises(RuntimeError, match="no grammar"):
        list(model.new_session().choices(replace(plain, processor=fails)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logprobs": 97}, "logprobs 97: expected 0 to 96"),
        ({"logprobs": 1.5}, r"logprobs 1.5"),
        ({"logprobs": True}, r"logprobs True"),
        ({"logit_bias": {96: 1.0}}, "logit_bias 96: outside the vocabulary of 96"),
        ({"logit_bias": {1: np.nan}}, "logit_bias 1: nan"),
        ({"logit_bias": [1]}, r"logit_bias \[1\]: expected a mapping"),
        ({"processor": 3}, "processor 3: expected a function"),
    ],
)
def test_what_is_refused(model: Model, changes: dict, message: str) -> None:
    engine = Engine(model, n_seqs=2)
    with pytest.raises((ValueError, TypeError), match=message):
        engine.add(replace(Request(PROMPT, 2), **changes))
    assert not engine.has_work


# -- embeddings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["live rows", "padded, with loops"])
def test_embeddings_beside_generations(
    model: Model, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from gguflow.engine.taps import tapped

    texts = [PROMPT, [3], [1 + i % 90 for i in range(300)], [5] * 64, [7] * 129]
    expected = []
    for ids in texts:
        rows = [out[0].copy() for out in tapped(model, ["output_norm"], [ids], n_ubatch=512)]
        expected.append(np.concatenate(rows))
    plain = Request(PROMPT, 60, HOT)
    alone = list(model.new_session().generate(plain.ids, 60, HOT))
    if kind != "live rows":
        pad(monkeypatch)
        install(monkeypatch)
    engine = Engine(model.with_options(n_ubatch=64), n_seqs=3, n_cache=9 * 64)
    ids = [engine.add(plain)]
    for _ in range(3):
        engine.step()
    means = [engine.add(EmbedRequest(t)) for t in texts]
    lasts = [engine.add(EmbedRequest(t, "last")) for t in texts]
    cancelled = engine.add(EmbedRequest(PROMPT))
    engine.cancel(cancelled)
    ids.append(engine.add(plain))
    found = run(engine)
    assert found[cancelled][-1].finish == "cancel"
    for i, rows in zip(means, expected, strict=True):
        (token,) = found[i]
        assert token.finish == "embedding" and token.embedding.dtype == np.float32
        np.testing.assert_allclose(token.embedding, rows.mean(0), atol=1e-5)
    for i, rows in zip(lasts, expected, strict=True):
        np.testing.assert_array_equal(found[i][0].embedding, rows[-1])
    assert text(found[ids[1]]) == alone
    assert is_clean(engine)
    with pytest.raises(ValueError, match="pooling 'max'"):
        engine.add(EmbedRequest(PROMPT, "max"))  # type: ignore[arg-type]
