"""The ReLU variant: only neurons that fire are computed, and a device keeps those that do most."""

from __future__ import annotations

from gguflow.engine.dataclass import replace
from gguflow.engine.load import ModelSource
from gguflow.engine.options import OptionError, Options
from gguflow.engine.planning import Setup
from gguflow.engine.variants.base import Decision, Tools
from gguflow.models.base import ModelError
from gguflow.models.relu import ReluLayers

from .device import place_on_device
from .form import choose_form
from .identity import model_hash
from .predictor import file_threshold, with_predictor
from .run import Mode, SparseRun, sparse_run, with_run
from .source import missing_predictor, with_neuron_rows


class ReluVariant:
    """Models of `ReluLayers`."""

    def prepare(self, setup: Setup) -> Setup:
        source, options = setup.source, setup.options
        sparse = options.sparse != "off" and not _stays_dense(source, options)
        if options.devices and options.split_mode == "tensor" and sparse:
            raise OptionError(
                "`split_mode=tensor`: what a ReLU model skips is known to one device only; use "
                "`sparse=off` or `split_mode=layer`"
            )
        if options.predictor:
            source, threshold = with_predictor(source, options.predictor, model_hash(source))
        else:
            threshold = file_threshold(source)
        return _prepared(replace(setup, source=source), threshold)

    def place(self, original: Setup, setup: Setup, tools: Tools) -> Decision:
        options = setup.options
        if options.vram_budget or options.split:
            return place_on_device(setup, tools)
        if options.sparse != "auto" or options.sparse_threshold is not None:
            return Decision(setup)
        if _stays_dense(original.source, options):
            return Decision(setup)
        return choose_form(setup, lambda mode: self.in_mode(original, setup, mode), tools)

    def again(self, setup: Setup, changed: frozenset[str]) -> Setup:
        if not changed & {"sparse", "sparse_threshold"}:
            return setup
        was = sparse_run(setup)
        assert was is not None
        options = replace(setup.options, predictor="", vram_budget=0, split="")
        new = _prepared(replace(setup, options=options), was.own)
        run = sparse_run(new)
        assert run is not None
        if run.mode != "off":
            new = with_run(new, replace(run, split=was.split))
        return replace(new, options=setup.options)

    def in_mode(self, original: Setup, placed: Setup, mode: Mode) -> Setup:
        """A model that was placed in another mode. original: as before `prepare`."""
        asked = replace(original, options=replace(original.options, sparse=mode))
        return replace(self.prepare(asked), options=placed.options, most_ubatch=placed.most_ubatch)


def _prepared(setup: Setup, own: float | tuple[float, ...]) -> Setup:
    """Weights and rewrite of the mode asked for. own: the predictors' threshold."""
    source, options = setup.source, setup.options
    mode = _mode(source, options)
    threshold = options.sparse_threshold
    n_layer = source.arch.hp.n_layer
    if isinstance(threshold, tuple) and len(threshold) != n_layer:
        raise OptionError(f"`sparse_threshold`: {len(threshold)} values for {n_layer} layers")
    if mode == "off" and (options.vram_budget or options.split):
        raise OptionError(
            "a VRAM budget and a split place the neurons of sparse layers: they need "
            "`sparse=predict` or exact; `n_gpu_layers` places whole layers"
        )
    others = tuple(r for r in setup.rewrites if not isinstance(r, SparseRun))
    run = SparseRun(mode, threshold, own)
    source = with_neuron_rows(source, dense=mode == "off")
    return replace(setup, source=source, rewrites=(run, *others))


def _stays_dense(source: ModelSource, options: Options) -> bool:
    """Whether nothing says that a model should run sparse: its family's files are not made for it,
    this one has no predictors, and no option asks for what only sparse layers have."""
    arch = source.arch
    asked = options.predictor or options.vram_budget or options.split
    told = options.sparse != "auto" or options.sparse_threshold is not None or bool(asked)
    made_for_it = isinstance(arch, ReluLayers) and arch.by_neuron
    return not (told or made_for_it) and missing_predictor(source) is not None


def _mode(source: ModelSource, options: Options) -> Mode:
    missing = missing_predictor(source)
    if options.sparse == "predict" and missing:
        raise ModelError(
            f"{source.path}: tensor {missing} is missing, so there is nothing to predict with; "
            "use `predictor=FILE` or `sparse=exact`, or train one with `gguflow sparse train`"
        )
    if options.sparse != "auto":
        return options.sparse
    if _stays_dense(source, options):
        return "off"
    if missing and options.sparse_threshold is not None:
        raise ModelError(
            f"{source.path}: `sparse_threshold` is for a predictor's scores, and tensor {missing} "
            "is missing"
        )
    return "exact" if missing else "predict"
