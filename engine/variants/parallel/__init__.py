"""The parallel variant: one model over several devices."""

from .variant import ParallelVariant

VARIANT = ParallelVariant()
