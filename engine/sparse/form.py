"""`--sparse auto`: which form of a ReLU model's layers is the fastest here, by measurement.

Each form runs the graph that the model itself would run, over layers of the model's sizes and types
with made-up weights, in which as many neurons fire as are expected to. The choice is kept, so that
the same command goes on giving the same text. It does not depend on -t, for texts do not.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from gguflow.engine.backends.base import Backend
from gguflow.engine.gguf import GgufError
from gguflow.engine.loader import ModelSource, WeightStore
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.profile.machine import machine_name
from gguflow.models.base import ModelError
from gguflow.models.relullama import ReluLlama

from .activity import measure_activity
from .identity import model_hash
from .layer_time import form_seconds, is_of_layer
from .run import Mode, SparseRun
from .setup import prepare
from .source import missing_predictor
from .stats import Activations
from .store import folder, model_stats

MARGIN = 0.05  # by which predicting has to be faster than what computes exactly the dense result
N_TOKENS = 64  # of the prompt that says how many neurons fire when nobody counted
VERSION = 1  # of what is kept


@dataclass(frozen=True)
class Form:
    """The form chosen. ms: milliseconds a layer by mode; active: share of neurons expected to fire;
    error: why nothing could be measured, which leaves the form that auto has without measuring."""

    mode: Mode
    ms: Mapping[str, float]
    active: float = 0.0
    error: str = ""

    def describe(self) -> str:
        """A line for the user."""
        if self.error:
            return f"sparse: {self.mode}, not measured ({self.error})"
        names = {"off": "dense"}
        rest = [f"{names.get(m, m)} {t:.3g}" for m, t in self.ms.items() if m != self.mode]
        return (
            f"sparse: {self.mode} (layer {self.ms[self.mode]:.3g} ms; {', '.join(rest)} at "
            f"{100 * self.active:.1f} % active)"
        )


def choose_form(model: Model, source: ModelSource, options: Options) -> Form | None:
    """The form for a model that is placed and not loaded yet; read back, or measured and kept.

    source, options: as they were before anything was prepared. None where the question does not
    arise: dense models, a form or threshold that was asked for, layers on more than one backend.
    """
    if (
        not isinstance(model.arch, ReluLlama)
        or options.sparse != "auto"
        or options.sparse_threshold is not None
        or (backend := _backend_of_layers(model)) is None
    ):
        return None
    sources = _forms(source, options)
    counts = _counts(source)
    path = _path(sources, counts, backend, options)
    if (kept := _kept(path)) is not None:
        return kept
    assert model.sparse is not None
    try:
        fired, computed = _shares(model, counts)
        seconds = form_seconds(backend, sources, fired, computed, options.fuse)
        ms = {mode: 1e3 * s for mode, s in seconds.items()}
        form = Form(fastest(ms), ms, float(np.mean(fired)))
    except Exception as e:  # whatever it is, the model may run all the same
        form = Form(model.sparse.mode, {}, error=(str(e) or type(e).__name__).splitlines()[0])
    _release(backend)
    with suppress(OSError):  # then the next run measures again
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(form)), "utf-8")
    return form


def fastest(ms: Mapping[str, float]) -> Mode:
    """Of the times by mode; predicting costs accuracy, so it has to be faster by `MARGIN`."""
    exact: Mode = "exact" if ms["exact"] <= ms["off"] else "off"
    return "predict" if ms.get("predict", np.inf) < (1 - MARGIN) * ms[exact] else exact


def _backend_of_layers(model: Model) -> Backend | None:
    """The one backend that runs all feed-forward layers of a token."""
    plan = model.plan(1, "last", sample=True)
    names = {plan.placement.of[n] for n in plan.nodes if ".ffn." in n.name}
    return model.backends[names.pop()] if len(names) == 1 else None


def _forms(source: ModelSource, options: Options) -> dict[str, tuple[ModelSource, SparseRun]]:
    """What runs in each mode. The threshold is that of the made-up scores."""
    lacks = missing_predictor(source) and not options.predictor
    modes: list[Mode] = ["exact", "off"] if lacks else ["predict", "exact", "off"]
    return {m: (prepare(source, replace(options, sparse=m))[0], SparseRun(m, 0.0)) for m in modes}


def _path(
    sources: Mapping[str, tuple[ModelSource, SparseRun]],
    counts: Activations | None,
    backend: Backend,
    options: Options,
) -> Path:
    """Where the choice is kept: by model, types of the layers, counts, processor."""
    first = next(iter(sources.values()))[0]
    types = [
        (mode, name, w.dtype.name, w.shape)
        for mode, (source, _) in sources.items()
        for name, w in source.weights.items()
        if is_of_layer(name)
    ]
    processor = machine_name(), backend.processor
    depends = repr(
        (VERSION, types, counts.hash if counts else "", backend.name, processor, options.fuse)
    )
    rest = blake2b(depends.encode(), digest_size=6).hexdigest()
    return folder() / f"{model_hash(first)}.{rest}.form.json"


def _kept(path: Path) -> Form | None:
    """What an earlier run measured; None where there is no such file, or it was damaged."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        form = Form(**json.loads(path.read_text("utf-8")))
        form.describe()
        return form if form.mode in ("predict", "exact", "off") else None
    return None


def _counts(source: ModelSource) -> Activations | None:
    """How often neurons fire: known of random weights, else by `gguflow sparse stats`."""
    with suppress(ModelError, GgufError):
        return model_stats(source)
    return None


def _shares(model: Model, counts: Activations | None) -> tuple[np.ndarray, np.ndarray]:
    """By layer, the shares of neurons that fire and that a predictor lets through, float64.

    Without counts they are those of a prompt of arbitrary tokens: an estimate, for which the model
    is loaded once and let go.
    """
    if counts is not None:
        return counts.active_fraction, counts.active_fraction
    hp = model.hp
    ids = np.random.default_rng(0).integers(0, hp.n_vocab, min(N_TOKENS, hp.n_ctx_train))
    probe = model.with_options(n_ctx=len(ids))
    probe.weights = WeightStore()
    probe.load_weights()
    rows = measure_activity(probe, ids.tolist())
    return np.array([r.active for r in rows]), np.array([r.computed for r in rows])


def _release(backend: Backend) -> None:
    """Let go of what was measured with: the device's memory is counted after this."""
    gc.collect()  # a session and its model hold each other
    if backend.memory is not None:
        backend.memory.trim()
