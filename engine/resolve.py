"""What runs, and where, from a model and its options: decided before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gguflow.engine.backends.base import Backend, DeviceId
from gguflow.engine.compile import Plan
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.devices import Devices
from gguflow.engine.load import ModelSource
from gguflow.engine.load.offload import Overrides, choose_layers
from gguflow.engine.options import OptionError, Options
from gguflow.engine.planning import Planner, Setup, token_key
from gguflow.engine.variants.base import Tools, Trial, Variant, kinds

DEVICE_KIND = "cuda"  # of the device that layers and neurons are placed on


@dataclass(frozen=True, eq=False)
class Resolved:
    """How a model runs.

    setup: its weights, its options with every placement rule, the rewrites of its graphs.
    device: what layers or neurons were placed on, empty where that was not asked for.
    n_gpu_layers: on it, the output head counting as one. decided: what was decided, in words.
    """

    setup: Setup
    device: str = ""
    n_gpu_layers: int = 0
    decided: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know: of the weights, then of the decisions."""
        return (*self.setup.source.notes, *self.decided)


@dataclass(frozen=True, eq=False)
class Prepared:
    """What is known without any device. original: the model and its options as they were given;
    setup: with the weights and rewrites that the options ask for; variants: those that it is of;
    device: as in `Resolved`, once devices are open."""

    original: Setup
    setup: Setup
    variants: tuple[Variant, ...]
    device: str = ""


def check_positions(setup: Setup) -> None:
    """Raises OptionError for sequences longer than the model has positions for."""
    most, n_ctx = setup.source.arch.most_ctx, setup.options.n_ctx
    if most is not None and n_ctx > most:
        raise OptionError(
            f"`n_ctx` {n_ctx}: {setup.source.arch.name} has learned positions for {most} tokens"
        )


def prepare(source: ModelSource, options: Options) -> Prepared:
    """The first half of `resolve`. Raises ModelError or OptionError for options that do not go with
    the model, GgufError for a bad file that they name."""
    setup = original = Setup(source, options).under(options)
    check_positions(setup)
    mine = [kind for kind in kinds() if kind.applies(source, options)]
    for kind in kinds():
        if kind not in mine:
            kind.refuse(source, options)
    variants = tuple(kind.variant() for kind in mine)
    for variant in variants:
        setup = variant.prepare(setup)
    return Prepared(original, setup, variants)


def open_devices(prepared: Prepared, devices: Devices) -> Prepared:
    """The same with the devices that the options ask for opened, and rules that name them.

    Raises LookupError for a device that there is none of, and what a backend raises that cannot be
    used.
    """
    options = prepared.setup.options
    names, device = options.backends, ""
    places = bool(options.n_gpu_layers or options.vram_budget or options.split)
    if places and not any(DeviceId.parse(n).kind == DEVICE_KIND for n in names):
        names = (DEVICE_KIND, *names)
    for name in names:
        devices.open(name)
    if places:
        device = devices.open(DEVICE_KIND)
    overrides = devices.named(options.overrides)
    several = tuple(devices.open(name) for name in options.devices)

    def renamed(setup: Setup) -> Setup:
        named = replace(setup.options, overrides=overrides, devices=several)
        return replace(setup, options=named)

    return replace(
        prepared, original=renamed(prepared.original), setup=renamed(prepared.setup), device=device
    )


def resolve(prepared: Prepared, planner: Planner, trial: Trial) -> Resolved:
    """Decide how a model runs on the planner's backends. Changes none of its arguments.

    trial: runs a model that is set up, where something is decided by measurement. Raises
    MemoryError with the figures when what is asked for does not fit.
    """
    setup, n_gpu_layers, notes = prepared.setup, 0, list[str]()
    options = setup.options
    notes += _unmatched(setup, planner)
    device = planner.backends[prepared.device] if prepared.device else None
    if options.n_gpu_layers and device is not None:
        setup, n_gpu_layers = _offloaded(setup, planner, device)
        n_layers = setup.source.arch.hp.n_layer + 1
        notes.append(f"{n_gpu_layers} of {n_layers} layers on {device.space}")
    host = next((b for b in planner.backends.values() if b is not device), None)
    for variant in prepared.variants:
        decision = variant.place(prepared.original, setup, Tools(planner, trial, device, host))
        setup = decision.setup
        notes += decision.notes
    setup = replace(setup, n_own_rewrites=len(setup.rewrites))
    return Resolved(setup, prepared.device, n_gpu_layers, tuple(notes))


def _unmatched(setup: Setup, planner: Planner) -> Iterator[str]:
    """A note for every rule of placement that no name fits."""
    if not setup.options.overrides:
        return
    plan = planner.plan(setup, token_key())
    names = [t.name for t in plan.placement.of]
    for pattern, target in setup.options.overrides:
        if not any(re.search(pattern, name) for name in names):
            yield f"`overrides` {pattern}={target}: no tensor or op has such a name"


def _offloaded(setup: Setup, planner: Planner, device: Backend) -> tuple[Setup, int]:
    """Whole layers on the device, and their number. Raises MemoryError with the figures."""
    options = setup.options
    candidates: dict[Overrides, Setup] = {}

    def placed(rules: Overrides) -> Setup:
        if rules not in candidates:
            overrides = (*options.overrides, *rules)
            candidates[rules] = replace(setup, options=replace(options, overrides=overrides))
        return candidates[rules]

    def plans_for(rules: Overrides) -> list[Plan]:
        return planner.largest(placed(rules))

    n_layer = setup.source.arch.hp.n_layer
    n, rules = choose_layers(options.n_gpu_layers, n_layer, device, plans_for)
    return placed(rules), n


def resolve_again(resolved: Resolved, changes: Mapping[str, Any]) -> Resolved:
    """The same weights, in the same places, run in another way. changes: fields of `Options`.
    Raises OptionError for one that the devices were opened or the weights brought with."""
    was = resolved.setup
    options = replace(was.options, **changes)
    for name in ("equal_bits", "compact_weights", "mlock"):
        if getattr(options, name) != getattr(was.options, name):
            raise OptionError(f"`{name}` is settled when a model is loaded")
    setup = was.under(options)
    check_positions(setup)
    for kind in kinds():
        if kind.applies(was.source, options) or kind.applies(was.source, was.options):
            setup = kind.variant().again(setup, frozenset(changes))
    return replace(resolved, setup=setup)
