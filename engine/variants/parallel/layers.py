"""Whole layers on several devices, all of them or the last ones, the others on the host."""

from __future__ import annotations

from collections.abc import Sequence

from gguflow.engine.backends.base import Backend
from gguflow.engine.compile.shares import shares
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.limits import ALL_LAYERS, AUTO_LAYERS
from gguflow.engine.load.offload import fits, most_layers
from gguflow.engine.options import OptionError
from gguflow.engine.planning import Setup
from gguflow.engine.variants.base import Tools

from .source import with_own_head

Overrides = tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Layers:
    """A model and the devices that its layers go to, in these proportions."""

    setup: Setup
    names: Sequence[str]
    ratios: Sequence[float]
    tools: Tools

    @property
    def n_layer(self) -> int:
        return self.setup.source.arch.hp.n_layer

    @property
    def host(self) -> str:
        """What runs the layers that no device has. Raises OptionError where nothing does."""
        if self.tools.host is None:
            raise OptionError("`n_gpu_layers`: no backend runs the layers that `devices` do not")
        return self.tools.host.name

    def n_held(self, asked: int, devices: Sequence[Backend]) -> int:
        """How many layers the devices have, the output head being one more, where `asked` is
        `Options.n_gpu_layers`. Raises OptionError for fewer than there are devices."""
        n = self.n_layer + 1
        if asked == AUTO_LAYERS:
            n = self._most(devices)
        elif asked not in (0, ALL_LAYERS):
            n = min(asked, n)
        if n < len(self.names):
            what = f"{n} layers" if n <= self.n_layer else f"{self.n_layer} layers and the output"
            raise OptionError(f"`devices`: {len(self.names)} for {what}")
        return n

    def placed(self, n_held: int) -> Setup:
        """The model with rules that put so many layers on the devices."""
        host = self.host if n_held <= self.n_layer else ""
        o = self.setup.options
        rules = (*o.overrides, *layer_rules(self.n_layer, self.names, self.ratios, n_held, host))
        setup = replace(self.setup, options=replace(o, overrides=rules))
        if len(self.names) > 1 and not host:
            setup = replace(setup, source=with_own_head(setup.source))
        return setup

    def note(self, n_held: int) -> str:
        """How many layers are where."""
        bounds = shares(n_held, self.ratios)
        each = [f"{b - a} on {name}"
                for name, a, b in zip(self.names, bounds, bounds[1:], strict=False)]  # fmt: skip
        if n_held <= self.n_layer:
            each.append(f"{self.n_layer + 1 - n_held} on {self.host}")
        return f"layers: {', '.join(each)}"

    def _most(self, devices: Sequence[Backend]) -> int:
        """As many as all devices have room for."""

        def all_fit(n: int) -> bool:
            plans = self.tools.planner.largest(self.placed(n))
            return all(fits(plans, d) for d in devices if d.memory is not None)

        return most_layers(self.n_layer + 1, all_fit)


def layer_rules(
    n_layer: int, names: Sequence[str], ratios: Sequence[float], n_held: int, host: str = ""
) -> Overrides:
    """Rules for the last n_held layers, the output head being one more, which comes with all of
    them. host: has what the devices have not."""
    first = max(n_layer - n_held, 0)
    bounds = shares(n_held, ratios)
    rules: list[tuple[str, str]] = []
    for k, name in enumerate(names):
        layers = range(first + bounds[k], min(first + bounds[k + 1], n_layer))
        if layers:
            numbers = "|".join(map(str, layers))
            rules.append((rf"^(?:blk|kv|ssm)\.(?:{numbers})\.", name))
    if host:
        return (*rules, (".*", host))
    return (*rules, (r"^(?:output|logits|sample)", names[-1]), (".*", names[0]))
