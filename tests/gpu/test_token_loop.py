"""Generation that runs ahead on the GPU gives the tokens of single steps, of one sequence and of
many."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.ahead import Ahead
from gguflow.engine.backends.cuda.token_loop import CAPACITY, CudaTokenLoop
from gguflow.engine.graph import Role
from gguflow.engine.model import Model
from gguflow.engine.plan_key import PAGE, PlanKey
from gguflow.engine.runtime import BoundPlan, bind
from gguflow.engine.sampling import SamplerSettings
from gguflow.kernels.cuda.advance import CacheRows, StepInputs, advance

pytestmark = pytest.mark.gpu

CUDA = ("cuda", "cpu", "numpy")
PROMPT = [1, 40, 50, 60, 70, 80]
GREEDY = SamplerSettings(temperature=0.0)
SETTINGS = {
    "greedy": GREEDY,
    "usual": SamplerSettings(seed=3),
    "penalty": SamplerSettings(temperature=0.0, repeat_penalty=1.3),
    "all": SamplerSettings(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=4),
    "many": SamplerSettings(temperature=2.0, top_k=90, top_p=0.99, repeat_penalty=1.1, seed=5),
}


@pytest.fixture
def model(gpu: Any, tmp_path: Path) -> Model:
    return Model.load(write_tiny(tmp_path / "m.gguf", gain=2.0), backends=CUDA, n_ctx=256)


def stepwise(model: Model, prompt: list[int], n: int, settings: SamplerSettings) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoundPlan, "token_loop", None)
        return list(model.new_session().generate(prompt, n, settings))


def test_it_is_used(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    monkeypatch.setattr(
        CudaTokenLoop, "launch", lambda self, launch=CudaTokenLoop.launch: [launch(self),
                                                                            launched.append(1)]
    )  # fmt: skip
    list(model.new_session().generate(PROMPT, 30, GREEDY))
    assert len(launched) == 29


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("n", [4, 30, 2 * CAPACITY + 7])
def test_the_tokens_are_those_of_single_steps(model: Model, name: str, n: int) -> None:
    session = model.new_session()
    found = list(session.generate(PROMPT, n, SETTINGS[name]))
    assert len(found) == n
    assert found == stepwise(model, PROMPT, n, SETTINGS[name])
    assert session.tokens == [*PROMPT, *found[:-1]]


def test_a_second_generation_continues_the_first(model: Model) -> None:
    session = model.new_session()
    ids = list(PROMPT)
    for n in (20, 9, 33):
        found = list(session.generate(ids, n, SETTINGS["all"]))
        assert found == stepwise(model, ids, n, SETTINGS["all"])
        ids += found


@pytest.mark.parametrize("arch", ["mamba2", "qwen3next"])
def test_a_recurrent_state_goes_on_from_what_was_taken(gpu: Any, tmp_path: Path, arch: str) -> None:
    """The device has made more tokens by then, which its states have seen."""
    path = write_tiny(tmp_path / "m.gguf", arch, gain=2.0, n_ctx_train=2048)
    model = Model.load(path, backends=CUDA, n_ctx=2048)
    session = model.new_session()
    for ids in (PROMPT, [*PROMPT] * 168):  # past the place where a state is copied
        text = session.generate(ids, 60, SETTINGS["all"])
        first = [next(text) for _ in range(20)]
        assert session.bound_plan(1, "last", True).token_loop is not None
        assert first == stepwise(model, ids, 20, SETTINGS["all"])
        found = list(session.generate(ids, 60, SETTINGS["all"]))
        assert found == stepwise(model, ids, 60, SETTINGS["all"])


def test_bytes_move_within_a_buffer(gpu: Any) -> None:
    buffer = gpu.alloc(1 << 20)
    data = np.random.default_rng(0).integers(0, 256, 1 << 16).astype(np.uint8)
    buffer.write(0, data)
    buffer.move(3 << 16, 0, 1 << 16)
    assert np.array_equal(buffer.read(3 << 16, 1 << 16), data)


def test_it_ends_with_the_context(model: Model) -> None:
    session = model.new_session()
    found = list(session.generate(PROMPT, -1, SETTINGS["all"]))
    assert len(PROMPT) + len(found) == model.options.n_ctx + 1
    assert found == stepwise(model, PROMPT, -1, SETTINGS["all"])


@pytest.mark.parametrize("n", [1, 3, 8, 20])
def test_stop_tokens(model: Model, n: int) -> None:
    plain = stepwise(model, PROMPT, 40, SETTINGS["all"])
    expected = plain[: plain.index(plain[n])]
    session = model.new_session()
    assert list(session.generate(PROMPT, 40, SETTINGS["all"], {plain[n]})) == expected
    longer = [*PROMPT, *expected, 33, 44]
    assert list(session.generate(longer, 20, GREEDY)) == stepwise(model, longer, 20, GREEDY)


def test_generators_left_early_and_sessions_thrown_away(model: Model) -> None:
    for taken in (1, 2, 5):
        session = model.new_session()
        tokens = session.generate(PROMPT, 100, SETTINGS["usual"])
        found = [next(tokens) for _ in range(taken)]
        tokens.close()
        longer = [*PROMPT, *found, 17]
        assert list(session.generate(longer, 9, GREEDY)) == stepwise(model, longer, 9, GREEDY)
        next(session.generate(PROMPT, 100, GREEDY))
        del session, tokens
        gc.collect()


def test_logits_and_turns_in_between(model: Model) -> None:
    session = model.new_session()
    a = session.generate(PROMPT, 40, SETTINGS["all"])
    b = session.generate([2, 3], 40, SETTINGS["usual"])
    found_a, found_b = [], []
    for _ in range(8):
        found_a += [next(a) for _ in range(4)]
        found_b += [next(b)]
        np.testing.assert_array_equal(
            session.logits(PROMPT)[-1], model.new_session().logits(PROMPT)[-1]
        )
    assert [*found_a, *a] == stepwise(model, PROMPT, 40, SETTINGS["all"])
    assert [*found_b, *b] == stepwise(model, [2, 3], 40, SETTINGS["usual"])


# -- many sequences --------------------------------------------------------------------------------


def batch_of(model: Model, n: int) -> BoundPlan:
    """A plan of n single tokens over a cache of its own."""
    plan = model.plan(PlanKey(n, 0, n, n, True))
    by_space = {b.space: b for b in model.backends.values()}
    states = {t.name: by_space[plan.space_of(t)].alloc(t.nbytes) for t in plan.leaves(Role.STATE)}
    arenas = {s: by_space[s].alloc(max(a.nbytes, 1)) for s, a in plan.arenas.items()}
    return bind(plan, model.backends, model.weights.buffers, model.weights.packed, states, arenas)


def begin(bound: BoundPlan, pages: int, padding: int) -> None:
    """Sequences that start with different tokens, some with pages of the others in between."""
    x, n = bound.inputs, len(bound.inputs["pos"])
    x["tokens"][:] = 3 + np.arange(n)
    x["pos"][:] = 0
    x["seq"][:] = np.roll(np.arange(n), 1)
    (group,) = (name.removeprefix("rows.") for name in x if name.startswith("rows."))
    table = x[f"table.{group}"]
    table[:] = -1
    table[:, :pages] = np.random.default_rng(0).permutation(n * pages).reshape(n, pages)
    x[f"rows.{group}"][:] = table[x["seq"], 0] * PAGE
    x["sampler.rng"][:] = np.stack([np.arange(n) + 5, np.zeros(n)], 1)
    x["sampler.history"][:] = -1
    for row, name in zip(x["sampler.settings"], [*SETTINGS] * n, strict=False):
        row[:] = SETTINGS[name].vector()
    if padding:
        for name in ("tokens", "pos", "seq", f"rows.{group}"):
            x[name][-padding:] = -1


def advanced(x: dict[str, np.ndarray], tokens: np.ndarray) -> None:
    """What `advance` does, on the host's copies."""
    live = x["pos"] >= 0
    x["tokens"][live] = tokens[live]
    x["pos"][live] += 1
    for name in x:
        if name.startswith("rows."):
            table = x["table." + name.removeprefix("rows.")]
            entry = np.clip(x["pos"] // PAGE, 0, table.shape[1] - 1)
            page = np.where(x["pos"] // PAGE == entry, table[x["seq"], entry], -1)
            x[name][live] = np.where(page < 0, -1, page * PAGE + x["pos"] % PAGE)[live]
    x["sampler.rng"][live, 1] += 1
    history = x["sampler.history"]
    history[live, :-1] = history[live, 1:]
    history[live, -1] = tokens[live]


@pytest.mark.parametrize("n, padding", [(1, 0), (5, 0), (16, 3), (40, 1)])
def test_many_sequences_make_the_tokens_of_single_steps(
    gpu: Any, tmp_path: Path, n: int, padding: int
) -> None:
    model = Model.load(write_tiny(tmp_path / "m.gguf", gain=2.0), backends=CUDA, n_ctx=PAGE * 2 * n)
    steps, expected = 2 * PAGE - 1, []
    bound = batch_of(model, n)
    begin(bound, 2, padding)
    for _ in range(steps):
        bound.run()
        tokens = bound.outputs[-1].copy()
        tokens[n - padding :] = -1
        expected.append(tokens)
        advanced(bound.inputs, tokens)
    other = batch_of(model, n)
    assert other.token_loop is not None
    for _ in range(2):  # the second time over what the first left behind
        begin(other, 2, padding)
        ahead = Ahead(other.token_loop, steps)
        for tokens in expected:
            np.testing.assert_array_equal(ahead.next(), tokens)
        assert ahead.is_over


def test_advance_moves_every_row_of_every_group(gpu: Any) -> None:
    rng = np.random.default_rng(3)
    n, n_seqs, h, size = 37, 50, 300, 8
    x = {
        "tokens": rng.integers(0, 99, n).astype(np.int32),
        "pos": rng.integers(-1, 6 * PAGE, n).astype(np.int32),
        "seq": rng.permutation(n_seqs)[:n].astype(np.int32),
        "sampler.rng": rng.integers(0, 1 << 40, (n, 2)),
        "sampler.history": rng.integers(0, 99, (n, h)).astype(np.int32),
        "rows.full": np.zeros(n, np.int32),
        "rows.window64": np.zeros(n, np.int32),
        "table.full": rng.integers(-1, 400, (n_seqs, 6)).astype(np.int32),
        "table.window64": rng.integers(-1, 90, (n_seqs, 7)).astype(np.int32),
    }
    x["pos"][[0, 5]] = PAGE - 1, 6 * PAGE - 1  # the next page; past the table
    sampled = rng.integers(0, 99, n).astype(np.int32)
    at = {name: gpu.alloc(a.nbytes) for name, a in {**x, "token": sampled}.items()}
    for name, a in {**x, "token": sampled}.items():
        at[name].write(0, a)
    steps, ring = gpu.alloc(4 * n), gpu.alloc(8 * size * n)
    groups = [CacheRows(at[f"rows.{g}"].address, at[f"table.{g}"].address,
                        x[f"table.{g}"].shape[1]) for g in ("full", "window64")]  # fmt: skip
    inputs = StepInputs(
        n, *(at[i].address for i in ("token", "tokens", "pos", "seq", "sampler.rng",
                                     "sampler.history")), h, n_seqs, groups,
    )  # fmt: skip
    launch = advance(inputs, steps.address, ring.address, size)
    gpu.modules.prepare([launch.kernel])
    bound = gpu.modules.bind(launch)
    for step in range(1, 2 * size):
        bound.issue()
        advanced(x, sampled)
        for name, a in x.items():
            found = at[name].read(0, a.nbytes).view(a.dtype).reshape(a.shape)
            np.testing.assert_array_equal(found, a, name)
        entries = ring.read(0, ring.nbytes).view(np.uint64).reshape(size, n)[step % size]
        assert (entries >> np.uint64(32) == step).all()
        tokens = entries.astype(np.uint32).view(np.int32)
        np.testing.assert_array_equal(tokens, np.where(x["pos"] >= 0, sampled, -1))
