"""Forecasts of speed on devices and machines that are not there.

The engine's own plans say what a run reads, computes and exchanges (`work`); constants of a machine
(`machine`) turn that into seconds (`cost`). Closed formulas of pipelines (`pipeline`) and a
discrete-event simulation of pipelines and replicas (`simulate`, `replicas`) go past one host.
`forecast` puts them together. Nothing is run and no device is needed.
"""

from .choose import choose_cards
from .forecast import Forecast, Question, forecast
from .machine import PRESETS, Machine, MachineError, find_machine

__all__ = [
    "PRESETS", "Forecast", "Machine", "MachineError", "Question", "choose_cards", "find_machine",
    "forecast",
]  # fmt: skip
