"""Several GPUs as one. On a machine with one, it is all of them: as many streams, which run at the
same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanges import bound_to, check, check_sharing, check_together, exchanging, fill, sharing_plan
from tiny_model import write_tiny

from gguflow.engine import model as model_module
from gguflow.engine.backends.base import Backend, DeviceId, find_backend
from gguflow.engine.compile import Recv
from gguflow.engine.graph import BF16, F16, F32
from gguflow.engine.model import Model
from gguflow.engine.profile import Profile
from gguflow.engine.runtime import BoundPlan, exchange
from gguflow.engine.runtime.exchange import SideBySide
from gguflow.engine.runtime.loops import LoopTogether
from gguflow.engine.sampling import SamplerSettings
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.engine.variants.parallel import variant
from gguflow.engine.variants.parallel.cuts import decide
from gguflow.kernels.cuda import all_reduce, all_reduce_norm

pytestmark = pytest.mark.gpu

IDS = [int(i) for i in np.random.default_rng(0).integers(5, 96, 50)]
GREEDY = SamplerSettings(temperature=0.0)
FAMILIES = ["llama", "gemma2", "qwen3moe", "gpt-oss", "deepseek2", "falcon", "qwen3next"]


@pytest.fixture(scope="module")
def cards(gpu: Any) -> Callable[[int], Backend]:
    """cuda:k, the one that there is if there are no more."""
    from gguflow.engine.backends.cuda import create
    from gguflow.engine.backends.cuda.backend import CudaBackend

    made: dict[int, Backend] = {}

    def card(k: int) -> Backend:
        if k not in made:
            made[k] = create({"device": k % gpu.n_alike})
            assert isinstance(made[k], CudaBackend)
            made[k].id = DeviceId("cuda", k)
            made[k].name = made[k].space = f"cuda:{k}"
        return made[k]

    return card


@pytest.fixture
def patched(cards: Callable[[int], Backend], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def find(name: str, options: Any = None) -> Backend:
        kind, _, index = name.partition(":")
        return (
            cards(int(index or (options or {}).get("device") or 0))
            if kind == "cuda"
            else (find_backend(name, options))
        )

    monkeypatch.setattr(model_module, "find_backend", find)
    yield


def on(path: Path, n: int, mode: str = "tensor", **options: Any) -> Model:
    names = tuple(f"cuda:{k}" for k in range(n))
    return Model.load(
        path, backends=("cuda", "cpu", "numpy"), devices=names, split_mode=mode, **options
    )


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_exchanges_of_all_sizes(cards: Callable[[int], Backend], n: int) -> None:
    sizes = [1, 2, 3, 31, 4096, 4097, 65536, 65537, 200_000, 1_000_003, 3_000_001]
    kinds = {all_reduce._is_small(n, 4 * s) for s in sizes}
    assert kinds == {True, False}
    bound = exchanging([cards(k) for k in range(n)], sizes)
    assert isinstance(bound.runner, SideBySide)
    rng = np.random.default_rng(n)
    for _ in range(7):
        check(bound, rng)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_rows_shared_out_have_the_bits_of_whole_sums(
    cards: Callable[[int], Backend], n: int
) -> None:
    """In every form that norms may cross in, of fewer and of more rows than blocks; exchanges of
    other kinds are between them."""
    cases = [(9, 64, None), (300, 4096, F16), (257, 5376, None), (600, 256, BF16),
             (65, 4096, F16), (128, 8192, F16)]  # fmt: skip
    devices = [cards(k) for k in range(n)]
    bound = bound_to(devices, sharing_plan(devices, cases))
    assert isinstance(bound.runner, SideBySide)
    rng = np.random.default_rng(n)
    for _ in range(3):
        check_sharing(bound, rng, cases, n)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_plans_in_turns_over_one_workspace(cards: Callable[[int], Backend], n: int) -> None:
    """Shared rows, large parts and small ones, each as another plan left the channels."""
    kinds: list[Any] = [
        [(600, 4096, F16)], [(300, 4096, None)], [256 * 4096, 5], [31 * 4096], [4096, 17],
        [64 * 4096],
    ]  # fmt: skip
    check_together([cards(k) for k in range(n)], kinds, 4)


@pytest.mark.parametrize("dtype", ["f16", "q4_0"])
def test_prompts_have_the_bits_of_whole_sums(
    patched: None, tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "m.gguf", dtype=dtype, gain=2.0, n_layer=4, n_embd=256,
                      n_head=4, n_head_kv=4, head_dim=64, head_dim_v=64, n_ff=512)  # fmt: skip
    ids = [3 + i * 7 % 90 for i in range(1000)]  # in pieces that a library multiplies
    found = on(path, 2, n_ctx=1024).logits(ids)
    few = on(path, 2, n_ctx=1024).logits(ids[:100])
    for limit in ("ROWS", "ROWS_OF_FLOATS"):
        monkeypatch.setattr(all_reduce_norm, limit, 1 << 30)
    expected = on(path, 2, n_ctx=1024).logits(ids)
    assert np.array_equal(found, expected)
    # A kernel for 65 rows and more norms them itself, in another order.
    whole = on(path, 2, n_ctx=1024).logits(ids[:100])
    assert ((few - whole) ** 2).sum() <= 1e-5 * (whole**2).sum()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_norms_that_exchanges_round_have_the_bits_of_launches(
    patched: None, tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 33 to 64 rows, which are large enough and not shared out."""
    path = write_tiny(tmp_path / "m.gguf", dtype=dtype, gain=2.0, n_layer=3, n_embd=4096,
                      n_head=4, n_head_kv=2, head_dim=64, head_dim_v=64, n_ff=512)  # fmt: skip
    prompts = [[3 + i * 7 % 90 for i in range(n)] for n in (33, 50, 64)]
    made: list[str] = []  # where a norm follows
    exchange = all_reduce.exchange

    def kept(*given: Any) -> Any:
        launch = exchange(*given)
        made.extend([launch.kernel.source] if given[-1] is not None else [])
        return launch

    monkeypatch.setattr(all_reduce, "exchange", kept)
    model = on(path, 2, n_ctx=128)
    found = [model.logits(ids) for ids in prompts * 2]
    assert set(made) == {"all_reduce_rounded.cu"}
    monkeypatch.setattr(all_reduce, "makes_norms", lambda *given: False)
    model = on(path, 2, n_ctx=128)
    expected = [model.logits(ids) for ids in prompts]
    assert all(np.array_equal(a, b) for a, b in zip(found, expected * 2, strict=True))


def test_exchanges_through_the_hosts_memory(
    cards: Callable[[int], Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [cards(k) for k in range(2)]
    for d in devices:
        assert d.links is not None
        monkeypatch.setattr(
            d, "links", type(d.links)(d.links.alloc_pinned, channel_bytes=d.links.channel_bytes)
        )
    bound = exchanging(devices, [3, 4096, 300_000])
    assert isinstance(bound.runner, SideBySide) and len(bound.runner.sides.apart) == 1
    rng = np.random.default_rng(1)
    for _ in range(3):
        check(bound, rng)


def test_a_device_that_does_not_come_ends_the_run(
    cards: Callable[[int], Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.2)
    bound = exchanging([cards(k) for k in range(2)], [4, 400_000])
    rng = np.random.default_rng(2)
    check(bound, rng)
    program = bound.runner.programs[1]
    start, finish = program.start, program.finish
    monkeypatch.setattr(program, "start", lambda timed=False, live=None: None)
    fill(bound, rng)
    with pytest.raises(
        exchange.LinkError, match=r"waited 0\.4\d* s for the others' parts of s\.0@0"
    ):
        bound.run()
    monkeypatch.setattr(program, "start", start)
    monkeypatch.setattr(program, "finish", finish)
    check(bound, rng)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("arch", FAMILIES)
def test_parts_make_the_whole(patched: None, tmp_path: Path, arch: str, n: int) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, seed=3, gain=2.0)
    types = {"k_type": F32, "v_type": F32}
    expected = Model.load(path, backends=("numpy",), **types).logits(IDS)
    model = on(path, n, **types)
    found = model.logits(IDS)
    assert nmse(found, expected) < 1e-4
    assert np.array_equal(on(path, n, **types).logits(IDS), found)


@pytest.mark.parametrize("n", [2, 3])
def test_layers_in_turn(patched: None, tmp_path: Path, n: int) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0, n_layer=4)
    expected = Model.load(path, backends=("cuda", "cpu", "numpy")).logits(IDS)
    assert np.array_equal(on(path, n, "layer").logits(IDS), expected)


@pytest.mark.parametrize("n", [2, 3])
def test_pieces_in_layers_of_all_devices_at_once(patched: None, tmp_path: Path, n: int) -> None:
    """The bits of pieces after each other, each time."""
    path = write_tiny(tmp_path / "m.gguf", gain=2.0, n_layer=4)
    sizes: dict[str, Any] = {"n_ctx": 1024, "n_ubatch": 64, "n_batch": 512}
    ids = [3 + i * 7 % 90 for i in range(1000)]
    session = Model.load(path, backends=("cuda", "cpu", "numpy"), **sizes).new_session()
    expected = session.prefill(ids, None, "last")[0].copy()
    session = on(path, n, "layer", **sizes).new_session()
    for _ in range(5):
        session.rewind(0)
        assert np.array_equal(session.prefill(ids, None, "last")[0], expected)


@pytest.mark.parametrize("settings", [GREEDY, SamplerSettings(temperature=1.5, seed=4)])
def test_tokens_without_the_host_are_those_of_single_steps(
    patched: None, tmp_path: Path, settings: SamplerSettings
) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0)
    model = on(path, 2, n_ctx=512)
    session = model.new_session()
    found = list(session.generate(IDS, 150, settings))
    assert isinstance(session.bound_plan(1, "last", True).token_loop, LoopTogether)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoundPlan, "token_loop", None)
        assert list(on(path, 2, n_ctx=512).new_session().generate(IDS, 150, settings)) == found


def test_many_sequences(patched: None, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0)
    head = [3 + i % 90 for i in range(70)]
    prompts = [[*head, 5], [*head, 6, 7], [9, 8], IDS]
    model = on(path, 2, n_ctx=256, n_seqs=4)
    alone = [list(model.new_session().generate(p, 20, GREEDY)) for p in prompts]
    engine = Engine(model)
    ids = [engine.add(Request(tuple(p), 20, GREEDY)) for p in prompts]
    found: dict[int, list[int | None]] = {i: [] for i in ids}
    while engine.has_work:
        for t in engine.step():
            found[t.request].append(t.id)
    assert [found[i] for i in ids] == alone


def test_a_profile_has_both_cards(patched: None, tmp_path: Path) -> None:
    model = on(write_tiny(tmp_path / "m.gguf", gain=2.0), 2)
    profile = Profile()
    session = model.new_session(profile)
    for i in IDS[:3]:
        session.step((i,), "last")
    sums = ("all_reduce", "all_reduce_add")
    rows = [r for r in profile.rows([len(profile.steps) - 1]) if r.op in sums]
    assert {r.backend for r in rows} == {"cuda:0", "cuda:1"}
    assert all(0 <= r.us < 1e6 for r in rows)


# -- logits that are made where they are read ------------------------------------------------------

WIDE: dict[str, Any] = {"n_vocab": 1031, "n_embd": 256, "n_head": 4, "n_head_kv": 4,
                        "head_dim": 64, "head_dim_v": 64, "n_ff": 512}  # fmt: skip


def moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where devices do not reach each other's memory."""
    monkeypatch.setattr("gguflow.engine.compile.plan.make_within", lambda *args: {})


def n_written(bound: BoundPlan) -> int:
    """Parts of logits that another device writes where they are read."""
    return sum(len(s.meeting.written) for s in bound.plan.steps if isinstance(s, Recv))


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the vocabulary were large."""
    monkeypatch.setattr(variant, "decide", partial(decide, least=0))


def n_reach(cards: Callable[[int], Backend], n: int) -> int:
    """Devices that reach the first one's memory, as it does theirs."""
    first, *others = (cards(k) for k in range(n))
    pairs = ((a.links, b.links, a, b) for a, b in ((first, x) for x in others))
    return sum(bool(x and y and x.reaches(b) and y.reaches(a)) for x, y, a, b in pairs)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q4_0"])
@pytest.mark.parametrize("n", [2, 3])
def test_logits_are_what_they_are_where_they_cross(
    gpu: Any, patched: None, cut: None, cards: Callable[[int], Backend], tmp_path: Path, n: int,
    dtype: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if 1 < gpu.n_alike < n:
        # What one waits for on its card, another one of that card may have to load code for first.
        pytest.skip(f"{n} devices on {gpu.n_alike} cards: as many, or one")
    path = write_tiny(tmp_path / "m.gguf", dtype=dtype, gain=2.0, **WIDE)
    ids = [3 + i * 7 % 1000 for i in range(300)]
    sizes = (1, 2, 5, 8, 16, 17, 40, 64, 100, 128, 300)
    model = on(path, n, n_ctx=512)
    bound = model.new_session().bound_plan(40, "all", False)
    assert n_written(bound) == n_reach(cards, n)
    found = [model.logits(ids[:m]).copy() for m in sizes]
    again = [model.logits(ids[:m]).copy() for m in sizes]
    moved(monkeypatch)
    model = on(path, n, n_ctx=512)
    assert n_written(model.new_session().bound_plan(40, "all", False)) == 0
    for m, x, y in zip(sizes, found, again, strict=True):
        assert np.array_equal(x, y), m
        expected = model.logits(ids[:m])
        # For rows of another distance a library may choose another algorithm.
        if m <= (256 if dtype == "q4_0" else 16):
            assert np.array_equal(x, expected), m
        else:
            assert nmse(x, expected) < 1e-10, m


@pytest.mark.parametrize("dtype", ["f16", "q4_0"])
@pytest.mark.parametrize("n", [2, 3])
def test_steps_without_the_host_write_logits_for_the_next(
    patched: None, cut: None, cards: Callable[[int], Backend], tmp_path: Path, n: int, dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A device that is ahead waits until those of the step before have been read."""
    path = write_tiny(tmp_path / "m.gguf", dtype=dtype, gain=2.0, **WIDE)
    settings = SamplerSettings(temperature=1.5, seed=4)
    session = on(path, n, n_ctx=1024).new_session()
    found = [list(session.generate(IDS, 600, settings)) for _ in range(2)]
    bound = session.bound_plan(1, "last", True)
    assert n_written(bound) == n_reach(cards, n)
    assert isinstance(bound.token_loop, LoopTogether)
    moved(monkeypatch)
    session = on(path, n, n_ctx=1024).new_session()
    assert [list(session.generate(IDS, 600, settings)) for _ in range(2)] == found


def test_logits_of_many_sequences(
    patched: None, cut: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "m.gguf", dtype="q4_0", gain=2.0, **WIDE)
    prompts = [tuple(3 + (i * 31 + k) % 1000 for k in range(3 + i % 5)) for i in range(64)]

    def texts() -> list[list[int | None]]:
        engine = Engine(on(path, 2, n_ctx=128, n_seqs=64))
        ids = [engine.add(Request(p, 60, GREEDY)) for p in prompts]
        found: dict[int, list[int | None]] = {i: [] for i in ids}
        while engine.has_work:
            for t in engine.step():
                found[t.request].append(t.id)
        return [found[i] for i in ids]

    found = texts()
    moved(monkeypatch)
    assert texts() == found
