"""Low-rank adapters beside the weights of a model (LoRA, Hu et al. 2021, arXiv 2106.09685)."""

from __future__ import annotations

from gguflow.engine.load import ModelSource
from gguflow.engine.options import Options
from gguflow.engine.variants.base import Kind, Variant


def _applies(source: ModelSource, options: Options) -> bool:
    """There is no model that adapters are not for."""
    return bool(options.lora)


def _variant() -> Variant:
    from .variant import LoraVariant

    return LoraVariant()


KIND = Kind("lora", _applies, _variant)
