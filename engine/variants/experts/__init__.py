"""Mixtures of experts over a device and the host: which experts lie where, and how a layer of both
is computed."""

from __future__ import annotations

from gguflow.engine.load import ModelSource
from gguflow.engine.options import OptionError, Options
from gguflow.engine.variants.base import Kind, Variant


def _applies(source: ModelSource, options: Options) -> bool:
    """Models of which some layer has experts."""
    return source.arch.hp.experts is not None


def _refuse(source: ModelSource, options: Options) -> None:
    for field, given in (
        ("cpu_experts", options.cpu_experts),
        ("expert_use", options.expert_use),
    ):
        if given:
            raise OptionError(
                f"{source.path}: `{field}` is for mixtures of experts, and this "
                f"{source.arch.name} model is none"
            )


def _variant() -> Variant:
    from .variant import ExpertsVariant

    return ExpertsVariant()


KIND = Kind("experts", _applies, _variant, _refuse)
