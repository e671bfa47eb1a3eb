"""--devices auto: as many GPUs as the model of cost says that a model should run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gguflow.engine.dataclass import replace

from .errors import UsageError

if TYPE_CHECKING:
    from gguflow.engine.load import ModelSource
    from gguflow.engine.options import Options

AUTO = ("auto",)


def with_devices(source: ModelSource, options: Options, note: Callable[[str], None]) -> Options:
    """The options with the devices by name that --devices auto stands for; the same where they are
    named. note is told how many and why. Raises what a GPU's backend raises without one."""
    if options.devices != AUTO:
        return options
    if options.tensor_split:
        raise UsageError(
            "-ts/--tensor-split gives shares to devices that --devices names, not to auto"
        )
    from gguflow.engine.backends.base import find_backend
    from gguflow.engine.scaling import choose_cards, find_machine

    gpu = find_backend("cuda")
    machine = find_machine("h200")
    if gpu.memory is not None:
        machine = replace(machine, memory_gib=gpu.memory.room()[1] / (1 << 30))
    cards, why = choose_cards(source, options, gpu.n_alike, machine)
    note(f"--devices auto: {why}")
    split = options.split_mode if cards > 1 else "none"
    return replace(options, devices=tuple(f"cuda:{k}" for k in range(cards)), split_mode=split)
