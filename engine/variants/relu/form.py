"""Sparse "auto": which form of a ReLU model's layers is the fastest here, by measurement.

Each form runs the graph that the model itself would run, over layers of the model's sizes and types
with made-up weights, in which as many neurons fire as are expected to. The choice is kept, so that
the same command goes on giving the same text. It does not depend on n_threads, for texts do not.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import cast

import numpy as np

from gguflow.engine.backends.base import Backend
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.files import private_folder, whole_file
from gguflow.engine.gguf import GgufError
from gguflow.engine.load import ModelSource
from gguflow.engine.planning import Setup, token_key
from gguflow.engine.profile.machine import machine_name
from gguflow.engine.variants.base import Decision, Tools
from gguflow.models.base import ModelError

from .activity import N_UBATCH, whole_gates
from .identity import model_hash
from .layer_time import form_seconds, is_of_layer
from .run import Mode, sparse_run
from .source import missing_predictor
from .stats import Activations
from .store import folder, model_stats

MODES = frozenset(("predict", "exact", "off"))
MARGIN = 0.05  # by which predicting has to be faster than what computes exactly the dense result
N_TOKENS = 64  # of the prompt that says how many neurons fire when nobody counted
VERSION = 2  # of what is kept
LARGEST = 1e30  # milliseconds or shares; more is no measurement, nor is NaN


@dataclass(frozen=True)
class Form:
    """The form chosen. ms: milliseconds a layer by mode; active: share of neurons that are
    expected to fire."""

    mode: Mode
    ms: Mapping[Mode, float]
    active: float

    def describe(self) -> str:
        """A line for the user."""
        names = {"off": "dense"}
        rest = [f"{names.get(m, m)} {t:.3g}" for m, t in self.ms.items() if m != self.mode]
        return (
            f"sparse: {self.mode} (layer {self.ms[self.mode]:.3g} ms; {', '.join(rest)} at "
            f"{100 * self.active:.1f} % active)"
        )


def choose_form(placed: Setup, in_mode: Callable[[Mode], Setup], tools: Tools) -> Decision:
    """The form for a model whose layers are placed; read back, or measured and kept.

    in_mode: the same model in each mode. Left as it is where the layers are on several backends.
    """
    backend = _backend_of_layers(placed, tools)
    if backend is None:
        return Decision(placed)
    lacks = missing_predictor(placed.source)
    modes: list[Mode] = ["exact", "off"] if lacks else ["predict", "exact", "off"]
    forms = {mode: in_mode(mode) for mode in modes}
    counts = _counts(placed.source)
    path = _path(forms, counts, backend)
    form, notes = _kept(path), []
    if form is None and path.is_file():
        notes.append(f"{path}: not a measurement that this version kept; measured again")
    if form is None or form.mode not in forms:
        try:
            form = _measured(placed, forms, counts, backend, tools)
        except (MemoryError, OSError, RuntimeError, ValueError) as e:  # it may run all the same
            mode, why = _mode_of(placed), (str(e) or type(e).__name__).splitlines()[0]
            return Decision(placed, (*notes, f"sparse: {mode}, not measured ({why})"))
        finally:
            _release(backend)
        with suppress(OSError):  # then the next run measures again
            private_folder(path.parent)
            with whole_file(path) as part:
                part.write_text(json.dumps(asdict(form)), "utf-8")
    chosen = placed if form.mode == _mode_of(placed) else forms[form.mode]
    return Decision(chosen, (*notes, form.describe()))


def _measured(
    placed: Setup,
    forms: Mapping[Mode, Setup],
    counts: Activations | None,
    backend: Backend,
    tools: Tools,
) -> Form:
    fired, computed = _shares(placed, counts, tools)
    seconds = form_seconds(backend, forms, fired, computed)
    ms = {mode: 1e3 * s for mode, s in seconds.items()}
    return Form(fastest(ms), ms, float(np.mean(fired)))


def fastest(ms: Mapping[Mode, float]) -> Mode:
    """Of the times by mode; predicting costs accuracy, so it has to be faster by `MARGIN`."""
    exact: Mode = "exact" if ms["exact"] <= ms["off"] else "off"
    return "predict" if ms.get("predict", np.inf) < (1 - MARGIN) * ms[exact] else exact


def _mode_of(setup: Setup) -> Mode:
    run = sparse_run(setup)
    assert run is not None
    return run.mode


def _backend_of_layers(setup: Setup, tools: Tools) -> Backend | None:
    """The one backend that runs all feed-forward layers of a token."""
    plan = tools.planner.plan(setup, token_key())
    names = {plan.placement.of[n] for n in plan.nodes if ".ffn." in n.name}
    return tools.planner.backends[names.pop()] if len(names) == 1 else None


def _path(forms: Mapping[Mode, Setup], counts: Activations | None, backend: Backend) -> Path:
    """Where the choice is kept: by model, types of the layers, counts, processor."""
    first = next(iter(forms.values()))
    types = [
        (mode, name, w.dtype.name, w.shape)
        for mode, setup in forms.items()
        for name, w in setup.source.weights.items()
        if is_of_layer(name)
    ]
    processor = machine_name(), backend.processor
    depends = repr(
        (VERSION, types, counts.hash if counts else "", backend.name, processor, first.options.fuse)
    )
    rest = blake2b(depends.encode(), digest_size=6).hexdigest()
    return folder() / f"{model_hash(first.source)}.{rest}.form.json"


def _kept(path: Path) -> Form | None:
    """What an earlier run measured; None where there is no such file, or it holds anything else."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.keys() != {"mode", "ms", "active"}:
        return None
    mode, ms, active = found["mode"], found["ms"], found["active"]
    is_ms = isinstance(ms, dict) and all(k in MODES and _is_number(v) for k, v in ms.items())
    if not is_ms or not isinstance(mode, str) or mode not in ms or not _is_number(active):
        return None
    return Form(cast(Mode, mode), ms, active)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < LARGEST  # of an integer that no float holds too


def _counts(source: ModelSource) -> Activations | None:
    """How often neurons fire: known of random weights, else by `gguflow sparse stats`."""
    with suppress(ModelError, GgufError):
        return model_stats(source)
    return None


def _shares(
    placed: Setup, counts: Activations | None, tools: Tools
) -> tuple[np.ndarray, np.ndarray]:
    """By layer, the shares of neurons that fire and that a predictor lets through, float64.

    Without counts they are those of a prompt of arbitrary tokens: an estimate, for which the model
    is loaded once and let go.
    """
    if counts is not None:
        return counts.active_fraction, counts.active_fraction
    hp = placed.source.arch.hp
    ids = np.random.default_rng(0).integers(0, hp.n_vocab, min(N_TOKENS, hp.n_ctx_train)).tolist()
    asked = replace(placed.options, n_ctx=len(ids), n_ubatch=N_UBATCH)
    gates = whole_gates(placed)
    assert gates is not None  # auto starts from a form that skips
    probe = replace(placed, rewrites=(*placed.rewrites, gates)).under(asked)
    rows = gates.activity(tools.trial(probe, ids))
    return np.array([r.active for r in rows]), np.array([r.computed for r in rows])


def _release(backend: Backend) -> None:
    """Let go of what was measured with: the device's memory is counted after this."""
    gc.collect()  # a session and its model hold each other
    if backend.memory is not None:
        backend.memory.trim()
