"""The parallel variant: one model over several devices."""

from __future__ import annotations

from gguflow.engine.load import ModelSource
from gguflow.engine.options import Options
from gguflow.engine.variants.base import Kind, Variant


def _applies(source: ModelSource, options: Options) -> bool:
    """Models of any kind."""
    return bool(options.devices)


def _variant() -> Variant:
    from .variant import ParallelVariant

    return ParallelVariant()


KIND = Kind("parallel", _applies, _variant)
