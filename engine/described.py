"""What a model says of how it was resolved."""

from __future__ import annotations

from gguflow.engine.load import ModelSource
from gguflow.engine.options import Options
from gguflow.engine.planning import Setup
from gguflow.engine.resolve import Resolved
from gguflow.models.base import Architecture, HParams


class Described:
    """The parts of what was resolved, by their names. resolved: set by the model."""

    resolved: Resolved

    @property
    def setup(self) -> Setup:
        """Weights, options and graph rewrites of what runs."""
        return self.resolved.setup

    @property
    def source(self) -> ModelSource:
        """Where the weights come from."""
        return self.setup.source

    @property
    def options(self) -> Options:
        """Complete: n_ctx and n_ubatch are this model's, overrides hold all placement rules."""
        return self.setup.options

    @property
    def arch(self) -> Architecture:
        """The architecture."""
        return self.source.arch

    @property
    def hp(self) -> HParams:
        """Its hyperparameters."""
        return self.arch.hp

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know: conversions, placement, choices by measurement."""
        return self.resolved.notes

    @property
    def device(self) -> str:
        """The device that layers or neurons were placed on; empty where none was asked for."""
        return self.resolved.device

    @property
    def n_gpu_layers(self) -> int:
        """Layers on the device, the output head counting as one."""
        return self.resolved.n_gpu_layers
