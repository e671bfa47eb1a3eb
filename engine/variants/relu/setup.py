"""From the options to what runs: which sparse mode, with whose predictor, on which weights."""

from __future__ import annotations

from gguflow.engine.load import ModelSource
from gguflow.engine.options import OptionError, Options
from gguflow.models.base import ModelError
from gguflow.models.relullama import ReluLlama

from .run import Mode, SparseRun
from .source import missing_predictor, with_neuron_rows


def prepare(source: ModelSource, options: Options) -> tuple[ModelSource, SparseRun | None]:
    """The model with the weights that the options ask for, and how its layers run.

    None for architectures that have no sparse form. Raises ModelError naming the tensor when there
    is no predictor to predict with, GgufError for a bad predictor file, OptionError for options
    that do not go with the model.
    """
    if not isinstance(source.arch, ReluLlama):
        _refuse(source, options)
        return source, None
    if options.predictor:
        from .identity import model_hash
        from .predictor import with_predictor

        source = with_predictor(source, options.predictor, model_hash(source))
    mode = _mode(source, options)
    threshold = options.sparse_threshold
    n_layer = source.arch.hp.n_layer
    if isinstance(threshold, tuple) and len(threshold) != n_layer:
        raise OptionError(f"sparse_threshold: {len(threshold)} values for {n_layer} layers")
    if mode == "off" and (options.vram_budget or options.split):
        raise OptionError(
            "a VRAM budget and a split place the neurons of sparse layers: they need --sparse "
            "predict or exact; -ngl places whole layers"
        )
    source = with_neuron_rows(source, dense=mode == "off")
    return source, SparseRun(mode, threshold)


def _mode(source: ModelSource, options: Options) -> Mode:
    missing = missing_predictor(source)
    if options.sparse == "predict" and missing:
        raise ModelError(
            f"{source.path}: tensor {missing} is missing, so there is nothing to predict with; "
            "use --predictor FILE or --sparse exact, or train one with `gguflow sparse train`"
        )
    if options.sparse != "auto":
        return options.sparse
    if missing and options.sparse_threshold is not None:
        raise ModelError(
            f"{source.path}: --sparse-threshold is for a predictor's scores, and tensor {missing} "
            "is missing"
        )
    return "exact" if missing else "predict"


def _refuse(source: ModelSource, options: Options) -> None:
    """Sparse options given to a model that is not sparse."""
    given = [
        flag
        for flag, there in (
            (f"--sparse {options.sparse}", options.sparse not in ("auto", "off")),
            ("--sparse-threshold", options.sparse_threshold is not None),
            ("--predictor", bool(options.predictor)),
            ("--vram-budget", bool(options.vram_budget)),
            ("--split", bool(options.split)),
        )
        if there
    ]
    if given:
        raise ModelError(
            f"{source.path}: {given[0]} is for {ReluLlama.name} models; this one is "
            f"{source.arch.name}"
        )
