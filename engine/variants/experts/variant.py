"""The experts variant: a mixture of experts whose experts lie on the host, all of them, those of
some layers, or but the most used ones."""

from __future__ import annotations

from gguflow.engine.dataclass import replace
from gguflow.engine.limits import AUTO_LAYERS
from gguflow.engine.options import OptionError
from gguflow.engine.planning import Setup
from gguflow.engine.variants.base import Decision, Tools

from .place import Room, all_hidden, host_rules, place_hottest, with_their_nodes
from .use import expert_use


class ExpertsVariant:
    """Models of which some layer has experts."""

    def prepare(self, setup: Setup) -> Setup:
        options = setup.options
        if options.cpu_experts == AUTO_LAYERS and not options.n_gpu_layers:
            raise OptionError(
                "`cpu_experts=auto` puts the most used experts on a GPU: give `n_gpu_layers`"
            )
        if options.expert_use and options.cpu_experts != AUTO_LAYERS:
            raise OptionError(
                "`expert_use` says which experts `cpu_experts=auto` places: give both"
            )
        rules = options.overrides
        if options.cpu_experts:
            own = host_rules(setup.source.arch.hp.n_layer, options.cpu_experts)
            if hidden := all_hidden(setup.source.weights, rules, own):
                raise OptionError(
                    f"`overrides` {hidden} places the experts before `cpu_experts` does: give one"
                )
            rules = (*rules, *own)
        overrides = with_their_nodes(setup, rules) if rules else rules
        return replace(setup, options=replace(options, overrides=overrides))

    def place(self, original: Setup, setup: Setup, tools: Tools) -> Decision:
        if setup.options.cpu_experts != AUTO_LAYERS:
            return Decision(setup)
        assert tools.device is not None  # `prepare` asks for one
        counts, known = expert_use(setup, tools.trial)
        placed, said = place_hottest(Room(setup, tools.planner, tools.device), counts)
        return Decision(placed, (f"{said} ({known})",))

    def again(self, setup: Setup, changed: frozenset[str]) -> Setup:
        return setup
