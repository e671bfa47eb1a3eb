"""--sparse auto: the fastest form is taken, kept, and measured with as much firing as there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relu_model import predictors
from tiny_model import write_tiny

from gguflow.cli.main import main
from gguflow.engine.backends.numpy import NumpyBackend
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.quants import decode
from gguflow.engine.variants.relu import layer_time
from gguflow.engine.variants.relu.form import fastest
from gguflow.engine.variants.relu.layer_time import is_of_layer
from gguflow.engine.variants.relu.run import sparse_run

BUNDLED = Path(__file__).parents[2] / "models" / "bundled" / "tales-relu.gguf"
FAST, SLOW, WASTED = (
    {"predict": 0.4, "exact": 0.6, "off": 0.5},
    {"predict": 0.49, "exact": 0.6, "off": 0.5},
    {"predict": 0.7, "exact": 0.6, "off": 0.9},
)


class Clocked(NumpyBackend):
    """A processor whose layers take what they are told to, in milliseconds by form."""

    now = 0.0

    def __init__(self, ms: dict[str, float], name: str = "one") -> None:
        super().__init__()
        self.ms, self.processor, self.n_compiled = ms, name, 0

    def lower(self, steps: Any, memory: Any, n_threads: Any = None, meets: Any = None) -> Any:
        program = super().lower(steps, memory, n_threads)
        names = " ".join(n.name for n in steps)
        mode = "predict" if ".predict" in names else "off" if ".ffn.gate" in names else "exact"
        n_layers, start = names.count(".ffn.residual"), program.start
        self.n_compiled += 1

        def clocked(timed: bool = False, live: Any = None) -> None:
            start(timed, live)
            Clocked.now += n_layers * self.ms[mode] / 1e3

        program.start = clocked  # type: ignore[method-assign]
        return program


@pytest.fixture
def load(write_relu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """load(backend, predict=True, **options) -> Model, not loaded."""
    monkeypatch.setenv("GGUFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(layer_time, "perf_counter", lambda: Clocked.now)
    files = {p: write_relu(p, name=f"{p}.gguf") for p in (True, False)}

    def make(backend: NumpyBackend, predict: bool = True, **options: Any) -> Model:
        monkeypatch.setattr("gguflow.engine.model.find_backend", lambda name, make: backend)
        return Model.load(files[predict], backends=("numpy",), n_ctx=64, **options)

    return make


def mode_of(model: Model) -> str:
    run = sparse_run(model.setup)
    assert run is not None
    return run.mode


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("*.form.json"))


@pytest.mark.parametrize(("ms", "mode"), [(FAST, "predict"), (SLOW, "off"), (WASTED, "exact")])
def test_the_fastest_is_taken(load, ms: dict[str, float], mode: str) -> None:
    model = load(Clocked(ms))
    assert mode_of(model) == mode == fastest(ms)
    assert model.notes[-1].startswith(f"sparse: {mode} (layer {ms[mode]:.3g} ms; ")
    expected = load(Clocked(ms), sparse=mode).logits([1, 9, 17])
    assert np.array_equal(model.logits([1, 9, 17]), expected)


def test_the_note_has_every_figure(load) -> None:
    note = load(Clocked(FAST)).notes[-1]
    assert note.startswith("sparse: predict (layer 0.4 ms; exact 0.6, dense 0.5 at ")
    assert 5 < float(note.split(" at ")[1].split(" %")[0]) < 95  # random gates: about half


def test_without_predictors_there_are_two(load) -> None:
    model = load(Clocked(FAST), predict=False)
    assert mode_of(model) == "off" and "predict" not in model.notes[-1]


def test_the_choice_is_kept_by_device(load, tmp_path: Path) -> None:
    load(Clocked(FAST))
    again = Clocked(WASTED)
    model = load(again)
    assert mode_of(model) == "predict" and again.n_compiled == 0  # nothing was run
    assert mode_of(load(Clocked(WASTED, "another"))) == "exact"
    assert mode_of(load(Clocked(WASTED), n_threads=1)) == "predict"  # texts do not depend on -t
    assert len(kept(tmp_path)) == 2


def test_a_damaged_file_is_measured_again(load, tmp_path: Path) -> None:
    load(Clocked(FAST))
    (file,) = kept(tmp_path)
    whole = {"mode": "predict", "ms": {"predict": 1.0, "exact": 2.0, "off": 2.0}, "active": 0.1}
    damaged = [
        "", "{}", "[1]", "7", "null",
        *(json.dumps({**whole, **change}) for change in (
            {"mode": "x"}, {"mode": 3}, {"mode": ["predict"]}, {"ms": {}}, {"ms": 5},
            {"ms": {"predict": "fast"}}, {"ms": {"predict": None}}, {"active": "half"},
            {"active": float("nan")}, {"error": ""},
        )),
    ]  # fmt: skip
    for text in damaged:
        file.write_text(text)
        model = load(Clocked(WASTED))
        assert mode_of(model) == "exact"
        assert (
            model.notes[-2] == f"{file}: not a measurement that this version kept; measured again"
        )
    again = load(Clocked(FAST))
    assert mode_of(again) == "exact" and len(again.notes) == 1  # what was kept
    file.write_text(json.dumps(whole))
    assert mode_of(load(Clocked(WASTED))) == "predict"


def test_what_cannot_be_measured_predicts_and_says_so(load, tmp_path: Path) -> None:
    class Full(Clocked):
        def alloc(self, nbytes: int) -> Any:
            raise MemoryError("no room")

    model = load(Full(WASTED))
    assert mode_of(model) == "predict"
    assert model.notes[-1] == "sparse: predict, not measured (no room)"
    assert kept(tmp_path) == []  # there was no room once
    assert mode_of(load(Clocked(WASTED))) == "exact" and len(kept(tmp_path)) == 1


def test_a_fault_of_the_program_is_not_taken_for_a_lack_of_room(load, tmp_path: Path) -> None:
    class Broken(Clocked):
        def alloc(self, nbytes: int) -> Any:
            raise AttributeError("misspelt")

    with pytest.raises(AttributeError, match="misspelt"):
        load(Broken(WASTED))


@pytest.mark.parametrize("options", [{"sparse": "predict"}, {"sparse_threshold": 0.5}])
def test_what_is_asked_for_is_not_measured(load, tmp_path: Path, options: dict[str, Any]) -> None:
    model = load(Clocked(WASTED), **options)
    assert mode_of(model) == "predict" and model.notes == () and not kept(tmp_path)


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_as_many_fire_as_are_said_to(tmp_path: Path, dtype: str) -> None:
    weights = predictors(rank=64)
    source = open_model(write_tiny(tmp_path / "m.gguf", "relullama", weights=weights, dtype=dtype))
    mine = {n: w for n, w in source.weights.items() if is_of_layer(n)}
    inputs, made = layer_time._made_up(mine, [0, 1], 64, (0.25, 0.5), (0.5, 0.75))

    def matrix(name: str) -> np.ndarray:
        w = made[name]
        return decode(w.dtype, w.read(), w.shape)

    for i, fired, computed in ((0, 24, 48), (1, 48, 72)):
        gate = inputs @ matrix(f"blk.{i}.ffn_gate.weight").T
        hidden = np.maximum(inputs @ matrix(f"blk.{i}.fc1.weight").T, 0)
        scores = hidden @ matrix(f"blk.{i}.fc2.weight").T
        assert len(inputs) > 1 and (gate != 0).all() and (scores != 0).all()
        assert ((gate > 0).sum(1) == fired).all() and ((scores > 0).sum(1) == computed).all()
        assert (scores[gate > 0] > 0).all()
        assert not np.array_equal(gate[0] > 0, gate[1] > 0)
        assert not matrix(f"blk.{i}.ffn_down_t.weight").any()
        assert (matrix(f"blk.{i}.ffn_up.weight") > 0).all()


def test_the_bundled_model_runs_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GGUFLOW_CACHE_DIR", str(tmp_path / "cache"))
    words = ["-m", str(BUNDLED), "-p", "Once upon a time", "-n", "8", "--temp", "0", "-t"]
    texts, notes = [], []
    for threads in ("1", "2"):
        assert main(["generate", *words, threads]) == 0
        out, err = capfd.readouterr()
        texts.append(out)
        notes.append([line for line in err.splitlines() if line.startswith("sparse: ")])
    assert notes[0] == notes[1] and len(notes[0]) == 1 and texts[0] == texts[1]
    assert " ms; " in notes[0][0] and " % active)" in notes[0][0]
    mode = notes[0][0].split()[1]
    assert main(["generate", *words, "1", "--sparse", mode]) == 0
    assert capfd.readouterr()[0] == texts[0]
    assert main(["inspect", str(BUNDLED), "--memory"]) == 0
    assert notes[0][0] in capfd.readouterr()[0]
