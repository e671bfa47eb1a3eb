"""Sessions: context limits, reuse of the cache, sampling, generators that are left early."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.compile import compile_graph
from gguflow.engine.gguf import GgufError
from gguflow.engine.model import Model
from gguflow.engine.options import OptionError, Options
from gguflow.engine.prompt import ContextError
from gguflow.engine.sampling import SamplerSettings
from gguflow.engine.session import Session
from gguflow.models.base import ModelError

GREEDY = SamplerSettings(temperature=0.0)
PROMPT = [1, 40, 50, 60, 70, 80]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.load(write_tiny(tmp_path_factory.mktemp("m") / "m.gguf", gain=2.0), n_threads=1)


@pytest.fixture
def session(model: Model) -> Session:
    return model.new_session()


def hot(seed: int) -> SamplerSettings:
    return SamplerSettings(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=seed)


# -- limits ----------------------------------------------------------------------------------------


def test_a_prompt_longer_than_the_context(model: Model, session: Session) -> None:
    n_ctx = model.options.n_ctx
    with pytest.raises(ContextError, match=f"{n_ctx + 1} tokens.*{n_ctx}.*n_ctx"):
        next(session.generate([1] * (n_ctx + 1), 1, GREEDY))
    assert session.tokens == []


def test_a_prompt_that_fills_the_context_gives_one_token(model: Model, session: Session) -> None:
    assert len(list(session.generate([1] * model.options.n_ctx, -1, GREEDY))) == 1


def test_generation_ends_when_the_context_is_full(model: Model, session: Session) -> None:
    made = list(session.generate(PROMPT, -1, GREEDY))
    # The last token is made from a full cache and is not in it.
    assert len(PROMPT) + len(made) == model.options.n_ctx + 1
    assert session.is_full


def test_a_step_beyond_the_context(model: Model, session: Session) -> None:
    session.step([1] * (model.options.n_ctx - 1))
    with pytest.raises(ContextError):
        session.step([1, 1])
    session.step([1])  # there is still room for one


def test_logits_of_more_tokens_than_the_context(model: Model, session: Session) -> None:
    with pytest.raises(ContextError):
        session.logits([1] * (model.options.n_ctx + 1))
    assert session.logits([1, 2]).shape == (2, 96)


def test_logits_of_no_tokens(session: Session) -> None:
    found = session.logits([])
    assert found.shape == (0, 96)
    assert found.dtype == np.float32


@pytest.mark.parametrize("bad", [-1, 96, 1 << 40])
def test_ids_outside_the_vocabulary(session: Session, bad: int) -> None:
    for call in (session.logits, lambda ids: list(session.generate(ids, 1, GREEDY))):
        with pytest.raises(ValueError, match=f"{bad} is outside the vocabulary of 96"):
            call([1, bad])


def test_an_empty_prompt(session: Session) -> None:
    with pytest.raises(ValueError, match="no tokens"):
        next(session.generate([], 1, GREEDY))


def test_no_tokens_asked_for(session: Session) -> None:
    assert list(session.generate(PROMPT, 0, GREEDY)) == []


# -- the cache -------------------------------------------------------------------------------------


def test_a_shared_prefix_is_reused_and_changes_nothing(model: Model, session: Session) -> None:
    first = list(session.generate(PROMPT, 8, GREEDY))
    longer = [*PROMPT, *first, 33, 44]
    found = list(session.generate(longer, 8, GREEDY))
    assert session.timings.n_prompt < len(longer) - len(PROMPT)
    assert found == list(model.new_session().generate(longer, 8, GREEDY))


def test_another_prompt_replaces_what_differs(model: Model, session: Session) -> None:
    list(session.generate(PROMPT, 8, GREEDY))
    other = [*PROMPT[:3], 9, 10]
    found = list(session.generate(other, 8, GREEDY))
    assert session.timings.n_prompt == 2
    assert found == list(model.new_session().generate(other, 8, GREEDY))


def test_the_same_prompt_again_computes_its_last_token(session: Session) -> None:
    first = list(session.generate(PROMPT, 8, GREEDY))
    assert list(session.generate(PROMPT, 8, GREEDY)) == first
    assert session.timings.n_prompt == 1


def test_sessions_do_not_disturb_each_other(model: Model) -> None:
    expected = list(model.new_session().generate(PROMPT, 10, GREEDY))
    a, b = model.new_session(), model.new_session()
    one = a.generate(PROMPT, 10, GREEDY)
    two = b.generate([1, 5, 6], 10, GREEDY)
    mixed = [t for t, _ in zip(one, two, strict=True)]
    assert mixed == expected


def test_prompts_of_any_length_share_few_plans(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []

    def counted(*args):
        compiled.append(args)
        return compile_graph(*args)

    monkeypatch.setattr("gguflow.engine.planning.compile_graph", counted)
    session = model.with_options(n_ctx=64).new_session()
    for n in (*range(2, 65), 1):
        list(session.generate([n] * n, 2, GREEDY))
    # Single tokens, and pieces of prompts of 16, 32 and 64.
    assert len(compiled) <= 4
    compiled.clear()
    list(model.with_options(n_ubatch=64, n_ctx=64).new_session().generate([1] * 60, 2, GREEDY))
    assert len(compiled) == 2


def test_lowered_plans_are_kept_up_to_a_number(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = session.bound_plan(1, "last", True)
    list(session.generate(PROMPT, 8, GREEDY))
    assert session.bound_plan(1, "last", True) is plan
    monkeypatch.setattr("gguflow.engine.serving.runner.PLAN_CACHE", 3)
    kinds = [(n, outputs) for n in (64, 32, 16) for outputs in ("all", "last", "none")]
    for n, outputs in kinds:
        session.bound_plan(n, outputs, False)
    assert len(session._runner._plans) == 3
    assert session.bound_plan(1, "last", True) is not plan
    assert len(list(session.generate(PROMPT, 4, GREEDY))) == 4


def test_a_larger_plan_moves_the_arena_and_old_plans_still_work(model: Model) -> None:
    session = model.with_options(n_ubatch=1).new_session()
    first = list(session.generate(PROMPT, 4, GREEDY))
    session.bound_plan(60, "all", False)
    session.rewind(0)
    assert list(session.generate(PROMPT, 4, GREEDY)) == first


# -- generators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [1, 3])
def test_a_generator_left_early_leaves_a_usable_session(
    model: Model, session: Session, taken: int
) -> None:
    expected = list(model.new_session().generate(PROMPT, 8, GREEDY))
    generator = session.generate(PROMPT, 8, GREEDY)
    part = [next(generator) for _ in range(taken)]
    generator.close()
    assert part == expected[:taken]
    assert session.timings.n_generated == taken
    assert list(session.generate(PROMPT, 8, GREEDY)) == expected
    assert np.array_equal(session.logits(PROMPT), model.new_session().logits(PROMPT))


def test_stop_tokens_end_it_and_are_not_yielded(model: Model, session: Session) -> None:
    made = list(session.generate(PROMPT, 8, GREEDY))
    stop = made[4]
    cut = made[: made.index(stop)]
    assert list(model.new_session().generate(PROMPT, 8, GREEDY, stop={stop})) == cut


# -- sampling --------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_text_and_another_seed_another(model: Model) -> None:
    def sample(seed: int) -> list[int]:
        return list(model.new_session().generate(PROMPT, 30, hot(seed)))

    assert sample(1) == sample(1)
    assert len({tuple(sample(s)) for s in range(5)}) == 5


def test_sampled_text_does_not_depend_on_how_it_is_computed(model: Model) -> None:
    expected = list(model.new_session().generate(PROMPT, 30, hot(3)))
    for changes in ({"n_threads": 2}, {"n_ubatch": 1}, {"n_batch": 4}):
        other = model.with_options(**changes).new_session()
        assert list(other.generate(PROMPT, 30, hot(3))) == expected


def test_no_seed_means_a_new_one_each_time(model: Model) -> None:
    drawn = {
        tuple(model.new_session().generate(PROMPT, 30, SamplerSettings(temperature=1.5, top_k=0)))
        for _ in range(4)
    }
    assert len(drawn) == 4


def test_sampling_follows_the_distribution(model: Model, session: Session) -> None:
    logits = session.logits(PROMPT)[-1].astype(np.float64) / 1.5
    p = np.exp(logits - logits.max())
    p /= p.sum()
    n = 2000
    drawn = [next(session.generate(PROMPT, 1, hot(seed))) for seed in range(n)]
    counts = np.bincount(drawn, minlength=len(p))
    likely = p > 0.02
    error = np.sqrt(p[likely] * (1 - p[likely]) / n)
    assert likely.sum() >= 5
    assert (np.abs(counts[likely] / n - p[likely]) < 5 * error).all()


def test_the_text_of_the_api(model: Model) -> None:
    pieces = list(model.generate("abc", max_tokens=12, temperature=0.0))
    ids = list(model.new_session().generate(model.tokenizer.encode("abc"), 12, GREEDY))
    assert "".join(pieces) == model.tokenizer.decode(ids, strip_space=False)


def test_settings_out_of_range_are_refused(model: Model) -> None:
    with pytest.raises(ValueError, match="temp"):
        list(model.generate("abc", max_tokens=1, temperature=float("nan")))


def test_unsampled_steps_return_logits_that_generate_agrees_with(
    model: Model, session: Session
) -> None:
    token = next(session.generate(PROMPT, 1, GREEDY))
    assert token == int(model.new_session().logits(PROMPT)[-1].argmax())


# -- sharing a session -----------------------------------------------------------------------------


def test_generations_that_take_turns(model: Model, session: Session) -> None:
    """Each gets what it would alone, whatever runs on the session in between."""
    prompts = PROMPT, [1, 40, 90, 91]
    alone = [list(model.new_session().generate(p, 12, hot(3))) for p in prompts]
    both = zip(*(session.generate(p, 12, hot(3)) for p in prompts), strict=True)
    assert [list(ids) for ids in zip(*both, strict=True)] == alone

    made = []
    for token in session.generate(PROMPT, 12, hot(3)):
        made.append(token)
        session.logits([1, 2, 3])
    assert made == alone[0]


@pytest.mark.parametrize("shared", [True, False])
def test_generations_on_several_threads(model: Model, shared: bool) -> None:
    prompts = [[1, 40 + i, 50] for i in range(4)]
    alone = [list(model.new_session().generate(p, 30, hot(3))) for p in prompts]
    one, two = model.new_session(), model.with_options(n_threads=2)
    made: dict[int, list[int]] = {}

    def work(i: int) -> None:
        made[i] = list((one if shared else two.new_session()).generate(prompts[i], 30, hot(3)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [made[i] for i in range(4)] == alone


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids", [[1.5], [[1, 2]], np.array([[1, 2]]), np.array([1.0]), "ab", [None]]
)
def test_ids_that_are_no_ids(session: Session, ids: object) -> None:
    with pytest.raises(TypeError, match="token ids must be whole numbers"):
        session.logits(ids)
    with pytest.raises(TypeError, match="token ids must be whole numbers"):
        next(session.generate(ids, 1, GREEDY))


def test_ids_in_an_array(session: Session) -> None:
    expected = session.logits(PROMPT)
    for ids in (tuple(PROMPT), np.array(PROMPT), np.array(PROMPT, np.uint16)):
        np.testing.assert_array_equal(session.logits(ids), expected)


def test_a_negative_number_of_tokens(session: Session) -> None:
    with pytest.raises(ValueError, match="max_tokens -2"):
        next(session.generate(PROMPT, -2, GREEDY))


@pytest.mark.parametrize(
    "name", ["n_ctx", "n_seqs", "n_cache", "n_batch", "n_ubatch", "n_threads", "n_threads_batch"]
)
@pytest.mark.parametrize("value", [-1, 1 << 31, 1.5, "2"])
def test_options_out_of_range(name: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"^{name} "):
        Options(**{name: value})


# -- errors ----------------------------------------------------------------------------------------


def test_a_bad_tokenizer_names_the_file(model: Model) -> None:
    source = replace(model.source, metadata={"tokenizer.ggml.model": 7})
    with pytest.raises(GgufError, match=re.escape(str(model.source.path))):
        _ = Model(source, model.options).tokenizer


def test_a_vocabulary_larger_than_the_embedding(model: Model) -> None:
    tokens = [*model.source.metadata["tokenizer.ggml.tokens"], "one more"]
    keys = {k: v for k, v in model.source.metadata.items() if k.startswith("tokenizer.")}
    n = len(tokens)
    keys |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": np.zeros(n, np.float32),
             "tokenizer.ggml.token_type": np.ones(n, np.int32)}  # fmt: skip
    with pytest.raises(ModelError, match=f"{n} tokens, token_embd.weight only {n - 1} rows"):
        _ = Model(replace(model.source, metadata=keys), model.options).tokenizer


def test_padding_of_the_embedding_has_no_text(model: Model) -> None:
    keys = {k: v for k, v in model.source.metadata.items() if k.startswith("tokenizer.")}
    n = len(keys["tokenizer.ggml.tokens"]) - 1
    for name in ("tokens", "scores", "token_type"):
        keys[f"tokenizer.ggml.{name}"] = keys[f"tokenizer.ggml.{name}"][:n]
    tokenizer = Model(replace(model.source, metadata=keys), model.options).tokenizer
    assert tokenizer.decode([n]) == tokenizer.stream().push(n) == ""
    with pytest.raises(ValueError, match=f"token id {n + 1} "):
        tokenizer.decode([n + 1])


def test_weights_with_nan_are_named_instead_of_sampled(tmp_path) -> None:
    bad = {"output_norm.weight": np.full(64, np.nan, np.float32)}
    model = Model.load(write_tiny(tmp_path / "nan.gguf", weights=bad), n_threads=1)
    with pytest.raises(ModelError, match=r"nan\.gguf: the logits are not finite"):
        next(model.generate(PROMPT))
