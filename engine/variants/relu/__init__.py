"""ReLU models: what is skipped, which neurons a device keeps, predictors.

`run` has the graph rewrite, `variant` what plugs in; `tools` measures and trains with whole models.
"""

from __future__ import annotations

from gguflow.engine.load import ModelSource
from gguflow.engine.options import OptionError, Options
from gguflow.engine.variants.base import Kind, Variant
from gguflow.models.relu import ReluLayers


def _applies(source: ModelSource, options: Options) -> bool:
    """Models of `ReluLayers`."""
    return isinstance(source.arch, ReluLayers)


def _refuse(source: ModelSource, options: Options) -> None:
    given = [
        field
        for field, there in (
            (f"sparse={options.sparse}", options.sparse not in ("auto", "off")),
            ("sparse_threshold", options.sparse_threshold is not None),
            ("predictor", bool(options.predictor)),
            ("vram_budget", bool(options.vram_budget)),
            ("split", bool(options.split)),
        )
        if there
    ]
    if given:
        raise OptionError(
            f"{source.path}: `{given[0]}` is for models with ReLU; this one is {source.arch.name}"
        )


def _variant() -> Variant:
    from .variant import ReluVariant

    return ReluVariant()


KIND = Kind("relu", _applies, _variant, _refuse)
