"""Mixtures of experts over a device and the host: which experts lie where, and how a layer of both
is computed."""

from .variant import ExpertsVariant

VARIANT = ExpertsVariant()

__all__ = ["VARIANT", "ExpertsVariant"]
