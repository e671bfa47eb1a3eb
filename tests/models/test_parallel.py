"""One model over several devices: simulated ones."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_model import write_tiny
from waited_for import some_of

from gguflow.engine.backends import simulated
from gguflow.engine.backends.simulated import SimulatedBackend
from gguflow.engine.compile import SpaceBytes
from gguflow.engine.compile.shares import shares
from gguflow.engine.graph import exchanged
from gguflow.engine.limits import ALL_LAYERS, AUTO_LAYERS
from gguflow.engine.load import open_model
from gguflow.engine.load.offload import RESERVE
from gguflow.engine.model import Model
from gguflow.engine.options import OptionError, Options
from gguflow.engine.plan_key import step_key
from gguflow.engine.planning import Setup, record
from gguflow.engine.runtime import BoundPlan
from gguflow.engine.runtime.exchange import SideBySide
from gguflow.engine.runtime.loops import LoopTogether
from gguflow.engine.runtime.turns import Turns
from gguflow.engine.sampling import GREEDY, SamplerSettings
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.engine.serving.speculation import Speculation
from gguflow.engine.variants.parallel.cuts import decide
from gguflow.engine.variants.parallel.layers import layer_rules
from gguflow.models.base import architectures

IDS = [int(i) for i in np.random.default_rng(7).integers(3, 96, 12)]
TWO = ("simulated:0", "simulated:1")
FEW = [("llama", 2), ("llama", 3), ("gemma2", 4), ("qwen3moe", 2), ("gpt-oss", 3),
       ("deepseek2", 2), ("falcon", 2), ("qwen3next", 2), ("mamba2", 2)]  # fmt: skip


def on(path: Path, n: int, mode: str = "tensor", **options: Any) -> Model:
    names = tuple(f"simulated:{k}" for k in range(n))
    return Model.load(path, backends=("numpy",), devices=names, split_mode=mode, **options)


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


def check(path: Path, n: int, **options: Any) -> Model:
    expected = Model.load(path, backends=("numpy",), **options).logits(IDS)
    model = on(path, n, **options)
    found = model.logits(IDS)
    assert nmse(found, expected) < 1e-7
    assert np.array_equal(on(path, n, **options).logits(IDS), found)  # from run to run
    return model


@pytest.mark.parametrize(("arch", "n"), FEW)
def test_parts_make_the_whole(arch: str, n: int, tmp_path: Path) -> None:
    check(write_tiny(tmp_path / "m.gguf", arch, gain=2.0), n)


@pytest.mark.slow
@pytest.mark.parametrize("n", (2, 3, 4, 8))
@pytest.mark.parametrize("arch", sorted(architectures()))
def test_every_family(arch: str, n: int, tmp_path: Path) -> None:
    relu = arch in ("bamboo", "relufalcon", "relullama")
    check(write_tiny(tmp_path / "m.gguf", arch, gain=2.0), n, **({"sparse": "off"} if relu else {}))


@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "gemma2"])
def test_exchanges_have_the_bits_of_sums_in_turn(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, gain=2.0)
    model = on(path, 3)
    bound = model.new_session().bound_plan(1, "last", True)
    assert isinstance(bound.runner, SideBySide) and bound.runner.sides.reductions
    found = model.logits(IDS)
    monkeypatch.setenv("GGUFLOW_LINK", "0")
    model = on(path, 3)
    bound = model.new_session().bound_plan(1, "last", True)
    assert isinstance(bound.runner, Turns) and not any(map(exchanged, bound.plan.nodes))
    assert np.array_equal(model.logits(IDS), found)


HOT = SamplerSettings(temperature=1.5, seed=4)


@pytest.mark.parametrize(
    ("arch", "settings"),
    some_of({("llama", HOT), ("qwen3next", GREEDY)}, ("llama", "qwen3next"), (GREEDY, HOT)),
)
def test_tokens_without_the_host_are_those_of_single_steps(
    arch: str, settings: SamplerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, gain=2.0)
    model = on(path, 2)
    session = model.new_session()
    found = [list(session.generate(IDS, 40, settings)) for _ in range(2)]
    assert isinstance(session.bound_plan(1, "last", True).token_loop, LoopTogether)
    monkeypatch.setattr(BoundPlan, "token_loop", None)
    session = on(path, 2).new_session()
    assert [list(session.generate(IDS, 40, settings)) for _ in range(2)] == found


def test_heads_of_eight_devices(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", n_head=8, n_head_kv=8, n_ff=64)
    model = check(path, 8)
    widths = {t.shape[1] for name, t in states(model).items() if name.startswith("kv.0.k")}
    assert len(states(model)) % 8 == 0 and len(widths) == 1


def states(model: Model) -> dict[str, Any]:
    g = record(model.resolved.setup, step_key(1, "last", False))
    return {n: t for n, t in g.leaves.items() if t.role.name == "STATE"}


def test_a_device_loads_its_part_alone(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", n_ff=96)
    model = on(path, 2, tensor_split=(2.0, 1.0))
    model.logits(IDS)
    shape = {name: source.shape for name, source in model.resolved.setup.source.weights.items()}
    assert shape["blk.0.ffn_up.weight@0"][0] == 64
    assert shape["blk.0.ffn_down.weight@1"][1] == 32
    loaded = set(model.weights.buffers)
    assert "blk.0.ffn_up.weight@1" in loaded and "blk.0.ffn_up.weight" not in loaded
    spaces = {p.placement.of[t] for p in [model.plan(step_key(1, "last", True))]
              for t in p.placement.of if t.name == "blk.0.ffn_up.weight@1"}  # fmt: skip
    assert spaces == {"simulated:1"}


def test_blocks_of_quantized_columns_stay_whole(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", dtype="q4_K", n_embd=256, n_head=4, n_head_kv=4,
                      head_dim=64, head_dim_v=64, n_ff=768)  # fmt: skip
    setup = Setup(open_model(path), Options()).under(Options())
    cuts = decide(record(setup, step_key(3, "all", False)), (1.0, 1.0))
    assert cuts.weights["blk.0.ffn_down.weight"].bounds == (0, 512, 768)
    assert cuts.weights["blk.0.ffn_gate.weight"].bounds == (0, 512, 768)
    # All 4 heads of 64 lie in one block of columns of what follows them.
    assert "blk.0.attn_q.weight" in cuts.whole
    check(path, 2)


def test_the_output_is_cut_where_it_is_large(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    setup = Setup(open_model(path), Options()).under(Options())
    g = record(setup, step_key(3, "all", True))
    assert "output.weight" not in decide(g, (1.0, 1.0)).weights
    assert decide(g, (1.0, 1.0), least=0).weights["output.weight"].joined


@pytest.mark.parametrize("mode", ["tensor", "layer"])
def test_many_sequences_with_shared_pages(mode: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0)
    head = [3 + i % 90 for i in range(70)]  # more than a page
    prompts = [[*head, 5], [*head, 6], [*head, 5, 7]]
    alone = Model.load(path, backends=("numpy",), n_ctx=128)
    expected = [list(alone.new_session().generate(p, 6, GREEDY)) for p in prompts]
    model = on(path, 2, mode, n_ctx=128, n_seqs=2)
    found = [list(model.new_session().generate(p, 6, GREEDY)) for p in prompts]
    assert found == expected
    session = model.new_session()
    list(session.generate(prompts[0], 3, GREEDY))
    session.rewind(68)
    assert list(session.generate(prompts[1], 6, GREEDY)) == expected[1]


@pytest.mark.parametrize(
    ("arch", "mode"),
    some_of({("llama", "tensor"), ("qwen3next", "layer")},
            ("llama", "qwen3next"), ("tensor", "layer")),
)  # fmt: skip
def test_guesses_over_several_devices(arch: str, mode: str, tmp_path: Path) -> None:
    """A draft is whole on the first; the text is the plain one."""
    path = write_tiny(tmp_path / "m.gguf", arch, gain=2.0)
    model = on(path, 2, mode, n_ctx=128, n_seqs=2)
    prompts = [IDS, IDS[:5], [9, 8, 7]]
    expected = [list(model.new_session().generate(p, 12, GREEDY)) for p in prompts]
    draft = model.load_draft(path, backends=("numpy",))
    assert set(draft.plan(step_key(1, "last", True)).placement.of.values()) == {"simulated:0"}
    model.speculate(Speculation(draft=draft, lookup=True, most=3, adaptive=False))
    assert [list(model.new_session().generate(p, 12, GREEDY)) for p in prompts] == expected
    engine = Engine(model)
    found: dict[int, list[int]] = {engine.add(Request(p, 12, GREEDY)): [] for p in prompts}
    while engine.has_work:
        for token in engine.step():
            assert token.id is not None
            found[token.request].append(token.id)
    assert list(found.values()) == expected
    assert engine.stats.drafting.accepted > 0
    on_host = model.load_draft(path, backends=("numpy",), n_gpu_layers=0)
    assert set(on_host.plan(step_key(1, "last", True)).placement.of.values()) == {"numpy"}


def test_layers_in_turn(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0, n_layer=3)
    expected = Model.load(path, backends=("numpy",)).logits(IDS)
    model = on(path, 2, "layer")
    assert np.array_equal(model.logits(IDS), expected)
    placed = model.plan(step_key(1, "last", True)).placement.of
    at = {t.name: backend for t, backend in placed.items()}
    assert at["blk.0.attn_q.weight"] == at["kv.1.k"] == "simulated:0"
    assert at["blk.2.attn_q.weight"] == at["kv.2.v"] == at["output.weight"] == "simulated:1"
    assert "layers: 2 on simulated:0, 2 on simulated:1" in model.notes


@pytest.mark.parametrize("arch", ["llama", "gemma2", "qwen3next"])
@pytest.mark.parametrize("n", [2, 3])
def test_the_host_has_the_layers_that_devices_have_not(arch: str, n: int, tmp_path: Path) -> None:
    layers = {"n_layer": 3} if arch == "llama" else {}
    path = write_tiny(tmp_path / "m.gguf", arch, gain=2.0, **layers)
    expected = Model.load(path, backends=("numpy",)).logits(IDS)
    n_layer = open_model(path).arch.hp.n_layer
    if n > n_layer:
        pytest.skip("all of them")
    model = on(path, 2, "layer", n_gpu_layers=n)
    assert np.array_equal(model.logits(IDS), expected)
    placed = model.plan(step_key(1, "last", True)).placement.of
    at = {t.name: backend for t, backend in placed.items()}
    last = [at[f"blk.{i}.attn_norm.weight"] for i in range(n_layer)]
    assert last == ["numpy"] * (n_layer - n) + ["simulated:0"] * (n - n // 2) + ["simulated:1"] * (
        n // 2
    )
    assert at["token_embd.weight"] == "numpy"
    assert any(note.endswith(f", {n_layer + 1 - n} on numpy") for note in model.notes)


@pytest.mark.parametrize("n_experts", [1, ALL_LAYERS])
def test_experts_on_the_host_beside_two_devices(n_experts: int, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "qwen3moe", gain=2.0)
    expected = Model.load(path, backends=("numpy",)).logits(IDS)
    names = {"backends": ("cpu", "numpy"), "devices": TWO, "n_threads": 1}
    model = Model.load(path, cpu_experts=n_experts, tensor_split=(1.0, 2.0), **names)
    assert nmse(model.logits(IDS), expected) < 1e-7
    placed = model.plan(step_key(1, "last", True)).placement.of
    at = {t.name: backend for t, backend in placed.items()}
    assert at["blk.0.ffn_up_exps.weight"] == "cpu"
    assert at["blk.1.ffn_up_exps.weight"] == ("simulated:1" if n_experts == 1 else "cpu")
    assert at["blk.1.attn_q.weight"] == "simulated:1"


def test_as_many_layers_as_devices_have_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0, n_layer=6)
    model = on(path, 2, "layer")
    plans = model.largest_plans()
    each = SpaceBytes.together([p.bytes_by_space()["simulated:1"] for p in plans])
    room = SimpleNamespace(
        unit=64, row_unit=1, room=lambda: (RESERVE + each.total * 2 // 3, 1 << 40),
        trim=lambda: None, scratch_bytes=lambda nodes: 0, reserve=lambda n, scratch: None,
    )  # fmt: skip
    monkeypatch.setattr(SimulatedBackend, "memory", room)
    with pytest.raises(MemoryError, match="simulated:[01]"):
        on(path, 2, "layer")
    fitted = on(path, 2, "layer", n_gpu_layers=AUTO_LAYERS)
    assert re.search(r"layers: [12] on simulated:0, [12] on simulated:1, [345] on numpy",
                     " ".join(fitted.notes))  # fmt: skip
    assert np.array_equal(fitted.logits(IDS), model.logits(IDS))


@pytest.mark.parametrize("mode", ["tensor", "layer"])
def test_devices_that_are_apart_are_named(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "m.gguf", gain=2.0)
    together = on(path, 2, mode)
    assert not any("reach" in note for note in together.notes)
    monkeypatch.setattr(simulated, "_reaches", lambda other: False)
    model = on(path, 2, mode)
    assert any(note.startswith("simulated:0 and simulated:1 do not") for note in model.notes)
    assert np.array_equal(model.logits(IDS), together.logits(IDS))


def test_shares() -> None:
    assert shares(8, (1, 1)) == (0, 4, 8)
    assert shares(5, (3, 1)) == (0, 4, 5)
    assert shares(3, (100, 1, 1)) == (0, 1, 2, 3)
    assert layer_rules(2, ("a", "b"), (1, 1), 3)[0] == (r"^(?:blk|kv|ssm)\.(?:0|1)\.", "a")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devices": ("simulated:0", "simulated:0")}, "each once"),
        ({"split_mode": "rows"}, "split_mode 'rows'"),
        ({"devices": TWO, "tensor_split": (1.0,)}, "1 shares for 2 devices"),
        ({"devices": TWO, "tensor_split": (1.0, 0.0)}, "numbers above 0"),
        ({"devices": TWO, "n_gpu_layers": 1}, "2 for 1 layers"),
        ({"devices": TWO, "split_mode": "tensor", "n_gpu_layers": 2}, "`n_gpu_layers`"),
        ({"devices": TWO, "cpu_experts": 1}, "`cpu_experts`"),
        ({"devices": TWO, "vram_budget": 1 << 30}, "`vram_budget`"),
        ({"devices": tuple(f"simulated:{k}" for k in range(9)), "split_mode": "layer"}, "9 for"),
    ],
)
def test_what_is_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        Model.load(write_tiny(tmp_path / "m.gguf"), backends=("numpy",), **options)


@pytest.mark.parametrize("arch", ["relullama", "bamboo"])
def test_relu_models_that_skip_nothing_are_cut(arch: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, gain=2.0)
    model = check(path, 2, sparse="off")
    assert "blk.0.ffn_down_t.weight@1" in model.weights.buffers
    (note,) = (note for note in model.notes if note.startswith("whole on every device"))
    assert note.endswith(": output (all are needed)")  # too small to be cut


@pytest.mark.parametrize(("arch", "kinds"), [("bloom", "attn_q"), ("olmo2", "attn_output")])
def test_what_is_whole_is_named(arch: str, kinds: str, tmp_path: Path) -> None:
    model = on(write_tiny(tmp_path / "m.gguf", arch, gain=2.0), 2)
    (note,) = (note for note in model.notes if note.startswith("whole on every device"))
    assert kinds in note and "ffn" not in note


def test_relu_models_are_refused_in_parts(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "relullama")
    with pytest.raises(OptionError, match="sparse=off"):
        on(path, 2)
    check_layers = on(path, 2, "layer", sparse="exact").logits(IDS)
    expected = Model.load(path, backends=("numpy",), sparse="exact").logits(IDS)
    assert np.array_equal(check_layers, expected)
