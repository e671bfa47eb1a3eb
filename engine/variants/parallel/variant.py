"""The parallel variant: layers in turn on several devices, or each layer on all of them at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from gguflow.engine import env
from gguflow.engine.backends.base import Backend
from gguflow.engine.dataclass import replace
from gguflow.engine.limits import ALL_LAYERS, AUTO_LAYERS
from gguflow.engine.load.offload import check_fits
from gguflow.engine.ops.all_reduce import DEVICES
from gguflow.engine.options import OptionError
from gguflow.engine.plan_key import step_key
from gguflow.engine.planning import Setup, record
from gguflow.engine.variants.base import Decision, Tools

from .cuts import Cuts, decide, sizes
from .layers import Layers, Overrides
from .rewrite import TensorSplit
from .rows import Takes
from .source import with_parts

WORTH_SAYING = 0.01  # of the weights
_TOKENS = 3  # of the graph that cuts are decided by: they are the same for any number


class ParallelVariant:
    """Models of any kind on `Options.devices`."""

    def prepare(self, setup: Setup) -> Setup:
        options = setup.options
        if options.vram_budget or options.split:
            raise OptionError("`vram_budget` and `split` choose for one device, not for `devices`")
        some = options.n_gpu_layers not in (0, ALL_LAYERS) or options.cpu_experts
        if options.split_mode == "tensor" and some:
            raise OptionError(
                "`split_mode=tensor`: `devices` have a part of every layer; for `n_gpu_layers` and "
                "`cpu_experts`, which leave some to the host, use `split_mode=layer`"
            )
        if options.cpu_experts == AUTO_LAYERS:
            raise OptionError(
                "`cpu_experts=auto` chooses for one device: give a number of layers with `devices`"
            )
        return replace(setup, options=replace(options, n_gpu_layers=0))

    def place(self, original: Setup, setup: Setup, tools: Tools) -> Decision:
        options = setup.options
        names = options.devices[:1] if options.split_mode == "none" else options.devices
        if not names:
            return Decision(setup)
        ratios = options.tensor_split[: len(names)] or (1.0,) * len(names)
        notes: list[str] = []
        devices = [tools.planner.backends[name] for name in names]
        if options.split_mode == "tensor" and len(names) > 1:
            cuts = decide(record(setup, step_key(_TOKENS, "all", False)), ratios)
            notes += _cut_notes(setup, cuts)
            overrides = (*options.overrides, *device_rules(names))
            setup = replace(
                setup,
                source=with_parts(setup.source, cuts),
                options=replace(options, overrides=overrides),
                rewrites=(*setup.rewrites, TensorSplit(cuts, _reduce(devices), _shares(devices))),
            )
        else:
            layers = Layers(setup, names, ratios, tools)
            n_held = layers.n_held(original.options.n_gpu_layers, devices)
            setup = layers.placed(n_held)
            notes.append(layers.note(n_held))
        _check(setup, tools, devices)
        return Decision(setup, (*notes, *_apart_notes(devices)))

    def again(self, setup: Setup, changed: frozenset[str]) -> Setup:
        return setup


def device_rules(names: Sequence[str]) -> Overrides:
    """What is called `<name>@<k>` goes to device k, and the rest to the first."""
    return (*((rf"@{k}$", name) for k, name in enumerate(names)), (".*", names[0]))


def _reduce(devices: Sequence[Backend]) -> bool:
    """Whether what all have a part of can be added while their programs run."""
    links = [d.links for d in devices]
    return (
        env.link()
        and len(devices) <= DEVICES
        and all(x is not None and x.channel_bytes is not None for x in links)
    )


def _shares(devices: Sequence[Backend]) -> Takes | None:
    """Of which sums they share the rows out; of none where some do not reach each other's memory,
    for then all of it passes through the host's."""
    links = [d.links for d in devices if d.links is not None]
    if len(links) < len(devices) or any(True for _ in _apart_notes(devices)):
        return None
    return lambda m, d, floats: all(x.shares_rows(m, d, floats) for x in links)


def _check(setup: Setup, tools: Tools, devices: Sequence[Backend]) -> None:
    plans = tools.planner.largest(setup)
    for device in devices:
        if device.memory is not None:
            check_fits(plans, device)


def _apart_notes(devices: Sequence[Backend]) -> Iterator[str]:
    """Of devices that cannot write into each other's memory."""
    linked = [(d, d.links) for d in devices if d.links is not None]
    for (a, from_a), (b, from_b) in combinations(linked, 2):
        if not (from_a.reaches(b) and from_b.reaches(a)):
            yield (
                f"{a.name} and {b.name} do not reach each other's memory: what crosses goes "
                "through the host's"
            )


def _cut_notes(setup: Setup, cuts: Cuts) -> list[str]:
    """What runs on all devices at once, and what could not be cut."""
    weights = setup.source.weights
    cut = sum(weights[n].nbytes for n in cuts.weights)
    every = sum(w.nbytes for w in weights.values() if len(w.shape) > 1)
    notes = [f"{cut / max(every, 1):.0%} of the weights are cut over {cuts.n} devices"]
    kinds: dict[str, str] = {}
    nbytes = Counter[str]()
    for name, why in cuts.whole.items():
        kind = name.split(".")[-2]
        kinds.setdefault(kind, why)
        nbytes[kind] += weights[name].nbytes
    large = [k for k in kinds if nbytes[k] > every * WORTH_SAYING]
    if large:
        found = ", ".join(f"{kind} ({kinds[kind]})" for kind in large)
        notes.append(f"whole on every device: {found}")
    uneven = next((sizes(c) for c in cuts.weights.values() if len({*sizes(c)}) > 1), None)
    if uneven:
        notes.append(f"parts of unequal size, such as {uneven}")
    return notes
